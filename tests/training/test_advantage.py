from __future__ import annotations

import math

import pytest
import torch

from reflectrl.training.advantage import STD_FLOOR, leave_one_out, normalized, rewards_to_go


def test_rewards_to_go_sum_what_is_still_to_come():
    assert rewards_to_go([1.0, 2.0, -4.0], gamma=1.0).tolist() == [-1.0, -2.0, -4.0]


def test_rewards_to_go_are_discounted():
    # -4; 2 + .5 * -4 = 0; 1 + .5 * 0 = 1
    assert rewards_to_go([1.0, 2.0, -4.0], gamma=0.5).tolist() == [1.0, 0.0, -4.0]
    assert rewards_to_go([1.0, 2.0, -4.0], gamma=0.0).tolist() == [1.0, 2.0, -4.0]


def test_one_step_returns_its_reward():
    assert rewards_to_go([0.25], gamma=0.9).tolist() == [0.25]


def test_the_leave_one_out_baseline_is_the_mean_of_the_other_visits():
    returns = torch.tensor([1.0, 2.0, 6.0, 10.0, 20.0])
    groups = torch.tensor([0, 0, 0, 1, 1])
    assert leave_one_out(returns, groups).tolist() == [4.0, 3.5, 1.5, 20.0, 10.0]


def test_the_order_of_the_steps_does_not_matter():
    returns, groups = torch.tensor([10.0, 1.0, 20.0, 2.0]), torch.tensor([1, 0, 1, 0])
    assert leave_one_out(returns, groups).tolist() == [20.0, 2.0, 10.0, 1.0]


def test_a_state_visited_once_is_compared_with_all_other_steps():
    returns, groups = torch.tensor([1.0, 3.0, 8.0]), torch.tensor([0, 0, 1])
    assert leave_one_out(returns, groups).tolist() == [3.0, 1.0, 2.0]


@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1], [0, 1, 2, 3, 3], [0, 1, 2, 3, 4]])
def test_no_leave_one_out_baseline_depends_on_its_own_return(groups):
    returns = torch.randn(5, generator=torch.Generator().manual_seed(0))
    baseline = leave_one_out(returns, torch.tensor(groups))
    for step in range(5):
        changed = returns.clone()
        changed[step] += 100.0
        assert leave_one_out(changed, torch.tensor(groups))[step] == pytest.approx(baseline[step].item(), abs=1e-4)


def test_a_single_step_has_the_baseline_zero():
    assert leave_one_out(torch.tensor([7.0]), torch.tensor([0])).tolist() == [0.0]


def test_normalisation_divides_by_the_deviation_and_keeps_the_sign_of_the_mean():
    advantages = torch.tensor([1.0, 5.0])  # standard deviation 2
    assert normalized(advantages).tolist() == [0.5, 2.5]


def test_normalisation_never_divides_by_less_than_the_floor():
    assert normalized(torch.tensor([0.02, -0.02])).tolist() == pytest.approx([0.02 / STD_FLOOR, -0.02 / STD_FLOOR])
    assert normalized(torch.tensor([0.3])).tolist() == pytest.approx([0.3 / STD_FLOOR])
    assert all(math.isfinite(value) for value in normalized(torch.zeros(4)).tolist())
