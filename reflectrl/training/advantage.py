"""Returns, baselines and advantages: pure functions of tensors with one element per step, episodes concatenated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STD_FLOOR = 0.2
"""Minimum divisor of the normalisation, which keeps it from amplifying noise if all advantages are nearly equal."""


def rewards_to_go(rewards: Sequence[float], gamma: float) -> Tensor:
    """Return the (T,) rewards-to-go ``Q_h = sum_{t>=h} gamma^(t-h) r_t`` of one episode (section 3)."""
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return torch.tensor(returns[::-1])


def generalized_advantages(
    rewards: Sequence[float], values: Sequence[float], last_value: float, *, gamma: float, gae_lambda: float
) -> Tensor:
    """Return GAE(lambda) of one episode (Schulman et al., 2016).

    ``A_h = sum_{t>=h} (gamma lambda)^(t-h) (r_t + gamma V_{t+1} - V_t)``

    Args:
        rewards: (T,) rewards of one episode.
        values: (T,) estimates of the return from each state of the episode.
        last_value: estimate of the return from the state after the last action, to bootstrap a truncated episode; 0 if
            the episode terminated.
        gamma: discount.
        gae_lambda: 1 for ``Q_h - V_h`` (least bias), 0 for the one-step TD error (least variance).

    Returns:
        (T,) advantages; their sum with ``values`` is the target of the value head.

    """
    advantages, total = [], 0.0
    following = [*values[1:], last_value]
    for reward, value, next_value in reversed(list(zip(rewards, values, following, strict=True))):
        total = reward + gamma * next_value - value + gamma * gae_lambda * total
        advantages.append(total)
    return torch.tensor(advantages[::-1])


def leave_one_out(returns: Tensor, groups: Tensor, episodes: Tensor) -> Tensor:
    """Return leave-one-out baselines: the mean return of OTHER episodes' steps with the same prompt.

    Where no other episode has a step with that prompt, it is the mean return of all their steps. Steps of the same
    episode are left out, because their returns share rewards with the step's return, which would bias the gradient;
    RLOO leaves out whole episodes as well.

    Args:
        returns: (N,) rewards-to-go.
        groups: (N,) integers; equal for steps that read the same prompt.
        episodes: (N,) integers; equal for steps of the same episode.

    Returns:
        (N,) baselines, which do not depend on the returns of the step's episode; 0 if there is no other episode.

    """
    total, count = _of_other_episodes(returns, groups, episodes)
    all_total, all_count = _of_other_episodes(returns, torch.zeros_like(groups), episodes)
    return torch.where(count > 0, total / count.clamp(min=1), all_total / all_count.clamp(min=1))


def step_grouped(
    totals: Tensor, tasks: Tensor, returns: Tensor, states: Tensor, episodes: Tensor, *, weight: float
) -> Tensor:
    """Return GiGPO advantages (Feng et al., 2025, arXiv 2505.10978): an episode-level plus a step-level advantage.

    Each is the difference from the mean of its group (``F_norm = 1`` in the paper), so it is 0 in a group of one.

    Args:
        totals: (E,) undiscounted returns of the episodes.
        tasks: (E,) integers; equal for episodes of the same task.
        returns: (N,) rewards-to-go of the steps.
        states: (N,) integers; equal for steps of the same task with the same observation, the anchor state.
        episodes: (N,) index of each step's episode.
        weight: weight omega of the step-level advantage.

    Returns:
        (N,) advantages.

    """
    return _above_mean(totals, tasks)[episodes] + weight * _above_mean(returns, states)


def _above_mean(values: Tensor, groups: Tensor) -> Tensor:
    """Return the (N,) differences of values from the mean of their group."""
    total, count = _sums(values, groups)
    return values - total / count


def _of_other_episodes(returns: Tensor, groups: Tensor, episodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (N,) sums and (N,) numbers of the returns in each step's group, without those of its episode."""
    own = torch.stack([groups, episodes]).unique(dim=1, return_inverse=True)[1]
    total, count = _sums(returns, groups)
    own_total, own_count = _sums(returns, own)
    return total - own_total, count - own_count


def _sums(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (N,) sums and (N,) numbers of the values in each element's group."""
    total = torch.zeros(int(groups.max()) + 1, dtype=values.dtype).index_add_(0, groups, values)
    return total[groups], torch.bincount(groups)[groups]


def spread(advantages: Tensor) -> Tensor:
    """Return the standard deviation of (N,) advantages, or ``STD_FLOOR`` if that is larger."""
    return advantages.std(correction=0).clamp(min=STD_FLOOR)
