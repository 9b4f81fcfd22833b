"""Returns and baselines: pure functions of tensors, one element a step, episodes concatenated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STD_FLOOR = 0.2
"""Smallest divisor of the normalisation: it keeps the noise of a batch of nearly equal advantages small."""


def rewards_to_go(rewards: Sequence[float], gamma: float) -> Tensor:
    """(T,) rewards of one episode to (T,) returns ``Q_h = sum_{t>=h} gamma^(t-h) r_t`` (Algorithm 1, line 29)."""
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return torch.tensor(returns[::-1])


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], last_value: float, *, gamma: float, gae_lambda: float
) -> Tensor:
    """GAE(lambda): ``A_h = sum_{t>=h} (gamma lambda)^(t-h) (r_t + gamma V_{t+1} - V_t)`` (Schulman et al., 2016).

    Args:
        rewards: (T,) of one episode.
        values: (T,) estimates of the return from each of its states.
        last_value: estimate for the state after the last action: 0 where the episode terminated, and where it was
            truncated the return that was cut off.
        gamma: discount.
        gae_lambda: 1 for ``Q_h - V_h`` (least bias), 0 for the one-step error (least variance).

    Returns:
        (T,) advantages; added to ``values`` they are the targets of the value head.

    """
    advantages, total = [], 0.0
    following = [*values[1:], last_value]
    for reward, value, next_value in reversed(list(zip(rewards, values, following, strict=True))):
        total = reward + gamma * next_value - value + gamma * gae_lambda * total
        advantages.append(total)
    return torch.tensor(advantages[::-1])


def leave_one_out(returns: Tensor, groups: Tensor, episodes: Tensor) -> Tensor:
    """Baseline of each step: the mean return of OTHER episodes in its state, of all their steps where none came there.

    Steps of the own episode count nowhere: their returns share rewards with the step's own, which would bias the
    gradient (RLOO, too, leaves out whole episodes).

    Args:
        returns: (N,) rewards-to-go.
        groups: (N,) integers; equal for steps that read the same prompt.
        episodes: (N,) integers; equal for steps of the same episode.

    Returns:
        (N,) baselines, none of which depends on a return of the step's own episode; 0 where there is no other episode.

    """
    total, count = _of_other_episodes(returns, groups, episodes)
    all_total, all_count = _of_other_episodes(returns, torch.zeros_like(groups), episodes)
    return torch.where(count > 0, total / count.clamp(min=1), all_total / all_count.clamp(min=1))


def step_grouped(
    totals: Tensor, tasks: Tensor, returns: Tensor, states: Tensor, episodes: Tensor, *, weight: float
) -> Tensor:
    """GiGPO (Feng et al., 2025, arXiv 2505.10978): an advantage among the episodes of a task plus one among its steps.

    Each of the two is the difference from the mean of its group (``F_norm = 1`` of the paper), and 0 in a group of one.

    Args:
        totals: (E,) undiscounted returns of the episodes.
        tasks: (E,) integers; equal for episodes of the same task.
        returns: (N,) rewards-to-go of the steps.
        states: (N,) integers; equal for steps of the same task with the same observation, the anchor state.
        episodes: (N,) index of each step's episode.
        weight: omega, of the advantage among steps.

    Returns:
        (N,) advantages.

    """
    return _above_mean(totals, tasks)[episodes] + weight * _above_mean(returns, states)


def _above_mean(values: Tensor, groups: Tensor) -> Tensor:
    """Return the (N,) differences of values from the mean of their group."""
    total, count = _sums(values, groups)
    return values - total / count


def _of_other_episodes(returns: Tensor, groups: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each step the (N,) sum and (N,) number of the returns in its group, its own episode left out."""
    own = torch.stack([groups, episodes]).unique(dim=1, return_inverse=True)[1]
    total, count = _sums(returns, groups)
    own_total, own_count = _sums(returns, own)
    return total - own_total, count - own_count


def _sums(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each step the (N,) sum and (N,) number of the values in its group."""
    total = torch.zeros(int(groups.max()) + 1, dtype=values.dtype).index_add_(0, groups, values)
    return total[groups], torch.bincount(groups)[groups]


def normalized(advantages: Tensor) -> Tensor:
    """Return (N,) advantages divided by their standard deviation, at least ``STD_FLOOR``; the mean stays as it is."""
    return advantages / advantages.std(correction=0).clamp(min=STD_FLOOR)
