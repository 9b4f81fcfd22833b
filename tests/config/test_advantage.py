from __future__ import annotations

import numpy as np
import pytest

from reflectrl.config.advantage import (
    STD_FLOOR,
    generalized_advantages,
    group_advantages,
    leave_one_out,
    rewards_to_go,
    spread,
    step_grouped,
)

pytestmark = pytest.mark.numerical


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [(1.0, [-1.0, -2.0, -4.0]), (0.5, [1.0, 0.0, -4.0]), (0.0, [1.0, 2.0, -4.0])],  # 2 + .5 * -4 = 0; 1 + .5 * 0 = 1
)
def test_rewards_to_go_sum_what_is_still_to_come(gamma, expected):
    assert rewards_to_go([1.0, 2.0, -4.0], gamma).tolist() == expected


@pytest.mark.parametrize(
    ("gae_lambda", "last_value", "expected"),
    [
        # one-step errors with gamma 0.5: 1 + .5 * 2 - 4 = -2; 3 + .5 * last - 2
        (0.0, 0.0, [-2.0, 1.0]),
        (0.0, 6.0, [-2.0, 4.0]),
        (1.0, 0.0, [-1.5, 1.0]),  # -2 + .5 * 1: reward-to-go minus value, 1 + .5 * 3 - 4
        (1.0, 6.0, [0.0, 4.0]),  # with the value after truncation: 1 + .5 * (3 + .5 * 6) - 4
        (0.5, 6.0, [-1.0, 4.0]),  # -2 + .25 * 4
    ],
)
def test_generalized_advantages_by_hand(gae_lambda, last_value, expected):
    found = generalized_advantages([1.0, 3.0], [4.0, 2.0], last_value, gamma=0.5, gae_lambda=gae_lambda)
    assert found.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("returns", "groups", "episodes", "expected"),
    [
        ([1.0, 2.0, 6.0, 10.0, 20.0], [0, 0, 0, 1, 1], [0, 1, 2, 0, 1], [4.0, 3.5, 1.5, 20.0, 10.0]),
        ([10.0, 1.0, 20.0, 2.0], [1, 0, 1, 0], [5, 5, 3, 3], [20.0, 2.0, 10.0, 1.0]),  # in any order
        ([1.0, 3.0, 8.0], [0, 0, 0], [0, 0, 1], [8.0, 8.0, 2.0]),  # the first episode reaches state 0 twice
        ([1.0, 3.0, 8.0], [0, 1, 0], [0, 0, 1], [8.0, 8.0, 1.0]),  # no other episode reaches state 1: all its steps
        ([7.0, 3.0], [0, 0], [0, 0], [0.0, 0.0]),  # there is no other episode
    ],
)
def test_the_leave_one_out_baseline_by_hand(returns, groups, episodes, expected):
    found = leave_one_out(np.array(returns), np.array(groups), np.array(episodes))
    assert found.tolist() == expected


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1], [0, 1, 2, 3, 3], [0, 0, 1, 0, 0]])
def test_no_leave_one_out_baseline_depends_on_its_own_return(groups):
    returns, episodes = np.random.default_rng(0).normal(size=5), np.array([0, 0, 1, 1, 2])
    baseline = leave_one_out(returns, np.array(groups), episodes)
    for episode in range(3):
        own = episodes == episode
        again = leave_one_out(returns + 100.0 * own, np.array(groups), episodes)
        assert np.allclose(again[own], baseline[own], atol=1e-4)
        assert not np.allclose(again[~own], baseline[~own], atol=1e-4)


def test_group_advantages_compare_episodes_of_a_task():
    found = group_advantages(np.array([1.0, 0.0, 0.0, 5.0, 5.0, 2.0]), np.array([0, 0, 0, 1, 1, 2]))
    spread = np.sqrt(2) / 3  # of the first three, whose mean is 1/3
    assert found == pytest.approx([2 / 3 / spread, -1 / 3 / spread, -1 / 3 / spread, 0, 0, 0])


def test_step_grouped_advantages_add_task_and_state_advantages():
    found = step_grouped(
        totals=np.array([1.0, 5.0, 7.0]),  # means of the tasks: 3 and 7, which only one episode plays
        tasks=np.array([0, 0, 1]),
        returns=np.array([1.0, 4.0, 7.0, 3.0, 8.0]),  # means of the states: 4, 3 and 8
        states=np.array([0, 0, 0, 1, 2]),
        episodes=np.array([0, 1, 1, 1, 2]),  # the second reaches state 0 twice
        weight=0.5,
    )
    assert found.tolist() == [-2.0 - 1.5, 2.0 + 0.0, 2.0 + 1.5, 2.0, 0.0]


@pytest.mark.parametrize(
    ("advantages", "expected"), [([1.0, 5.0], 2.0), ([0.02, -0.02], STD_FLOOR), ([0.3], STD_FLOOR)]
)
def test_the_spread_of_advantages_has_a_floor(advantages, expected):
    assert spread(np.array(advantages)) == pytest.approx(expected)
