from __future__ import annotations

import math

import pytest
import torch

from reflectrl.training.advantage import STD_FLOOR, generalized_advantages, leave_one_out, normalized, rewards_to_go


def test_rewards_to_go_sum_what_is_still_to_come():
    assert rewards_to_go([1.0, 2.0, -4.0], gamma=1.0).tolist() == [-1.0, -2.0, -4.0]


def test_rewards_to_go_are_discounted():
    # -4; 2 + .5 * -4 = 0; 1 + .5 * 0 = 1
    assert rewards_to_go([1.0, 2.0, -4.0], gamma=0.5).tolist() == [1.0, 0.0, -4.0]
    assert rewards_to_go([1.0, 2.0, -4.0], gamma=0.0).tolist() == [1.0, 2.0, -4.0]


def test_one_step_returns_its_reward():
    assert rewards_to_go([0.25], gamma=0.9).tolist() == [0.25]


@pytest.mark.parametrize(
    ("gae_lambda", "last_value", "expected"),
    [
        # one-step errors with gamma 0.5: 1 + .5 * 2 - 4 = -2; 3 + .5 * last - 2
        (0.0, 0.0, [-2.0, 1.0]),
        (0.0, 6.0, [-2.0, 4.0]),
        (1.0, 0.0, [-1.5, 1.0]),  # -2 + .5 * 1: reward-to-go minus value, 1 + .5 * 3 - 4
        (1.0, 6.0, [0.0, 4.0]),  # the part that was cut off counts: 1 + .5 * (3 + .5 * 6) - 4
        (0.5, 6.0, [-1.0, 4.0]),  # -2 + .25 * 4
    ],
)
def test_generalized_advantages_by_hand(gae_lambda, last_value, expected):
    found = generalized_advantages([1.0, 3.0], [4.0, 2.0], last_value, gamma=0.5, gae_lambda=gae_lambda)
    assert found.tolist() == pytest.approx(expected)


def test_the_leave_one_out_baseline_is_the_mean_of_the_visits_of_other_episodes():
    returns = torch.tensor([1.0, 2.0, 6.0, 10.0, 20.0])
    groups, episodes = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 1, 2, 0, 1])
    assert leave_one_out(returns, groups, episodes).tolist() == [4.0, 3.5, 1.5, 20.0, 10.0]


def test_the_order_of_the_steps_does_not_matter():
    returns, groups = torch.tensor([10.0, 1.0, 20.0, 2.0]), torch.tensor([1, 0, 1, 0])
    assert leave_one_out(returns, groups, torch.tensor([5, 5, 3, 3])).tolist() == [20.0, 2.0, 10.0, 1.0]


def test_visits_of_the_own_episode_do_not_count():
    # the first episode comes to state 0 twice, the second once
    returns, groups, episodes = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 0]), torch.tensor([0, 0, 1])
    assert leave_one_out(returns, groups, episodes).tolist() == [8.0, 8.0, 2.0]


def test_a_state_that_no_other_episode_came_to_is_compared_with_all_steps_of_the_others():
    returns, groups, episodes = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1])
    assert leave_one_out(returns, groups, episodes).tolist() == [8.0, 8.0, 1.0]


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1], [0, 1, 2, 3, 3], [0, 1, 2, 3, 4], [0, 0, 1, 0, 0]])
def test_no_leave_one_out_baseline_depends_on_a_return_of_its_own_episode(groups):
    returns, episodes = torch.randn(5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 0, 1, 1, 2])
    baseline = leave_one_out(returns, torch.tensor(groups), episodes)
    for episode in range(3):
        changed = returns + 100.0 * (episodes == episode)
        again = leave_one_out(changed, torch.tensor(groups), episodes)
        own, others = episodes == episode, episodes != episode
        assert torch.allclose(again[own], baseline[own], atol=1e-4)
        assert not torch.allclose(again[others], baseline[others], atol=1e-4)


def test_a_single_episode_has_the_baseline_zero():
    assert leave_one_out(torch.tensor([7.0, 3.0]), torch.tensor([0, 0]), torch.tensor([0, 0])).tolist() == [0.0, 0.0]


def test_normalisation_divides_by_the_deviation_and_keeps_the_sign_of_the_mean():
    advantages = torch.tensor([1.0, 5.0])  # standard deviation 2
    assert normalized(advantages).tolist() == [0.5, 2.5]


def test_normalisation_never_divides_by_less_than_the_floor():
    assert normalized(torch.tensor([0.02, -0.02])).tolist() == pytest.approx([0.02 / STD_FLOOR, -0.02 / STD_FLOOR])
    assert normalized(torch.tensor([0.3])).tolist() == pytest.approx([0.3 / STD_FLOOR])
    assert all(math.isfinite(value) for value in normalized(torch.zeros(4)).tolist())
