"""What a set of episodes shows, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from reflectrl.core import Trajectory

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class EpisodeMetrics:
    """Means over episodes; rates are fractions."""

    episodes: int
    success: float
    success_low: float
    """Lower end of the 95 % Wilson interval of the success rate."""
    success_high: float
    """Upper end."""
    episode_return: float
    """Undiscounted."""
    length: float
    """Steps an episode."""
    illegal: float
    """Illegal actions a step."""
    entropy: float
    """Nats a step, over the menu."""


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, z2 = successes / trials, Z95 * Z95
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def episode_metrics(trajectories: Sequence[Trajectory]) -> EpisodeMetrics:
    """Summarise at least one episode."""
    wins = sum(t.success for t in trajectories)
    turns = [turn for t in trajectories for turn in t.turns]
    low, high = wilson_interval(wins, len(trajectories))
    return EpisodeMetrics(
        episodes=len(trajectories),
        success=wins / len(trajectories),
        success_low=low,
        success_high=high,
        episode_return=fmean(t.episode_return for t in trajectories),
        length=fmean(len(t.turns) for t in trajectories),
        illegal=fmean(turn.illegal for turn in turns),
        entropy=fmean(turn.decision.entropy for turn in turns),
    )
