"""Returns and baselines: pure functions of tensors, one element a step, episodes concatenated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STD_FLOOR = 0.2
"""Smallest divisor of the normalisation: a batch in which nothing differs must not blow its noise up."""


def rewards_to_go(rewards: Sequence[float], gamma: float) -> Tensor:
    """(T,) rewards of one episode to (T,) returns ``Q_h = sum_{t>=h} gamma^(t-h) r_t`` (Algorithm 1, line 29)."""
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + gamma * total
        returns.append(total)
    return torch.tensor(returns[::-1])


def leave_one_out(returns: Tensor, groups: Tensor) -> Tensor:
    """Baseline of each step: the mean return of the OTHER visits of its state, of all other steps where there is none.

    Args:
        returns: (N,) rewards-to-go.
        groups: (N,) integers; equal for steps that read the same prompt.

    Returns:
        (N,) baselines, none of which depends on the step's own return (as in RLOO, per step instead of per episode).

    """
    count = torch.bincount(groups).to(returns.dtype)[groups]
    total = torch.zeros(int(groups.max()) + 1, dtype=returns.dtype).index_add_(0, groups, returns)[groups]
    all_others = (returns.sum() - returns) / max(len(returns) - 1, 1)
    return torch.where(count > 1, (total - returns) / (count - 1).clamp(min=1), all_others)


def normalized(advantages: Tensor) -> Tensor:
    """(N,) advantages divided by their standard deviation, at least ``STD_FLOOR``; the mean stays as it is."""
    return advantages / advantages.std(correction=0).clamp(min=STD_FLOOR)
