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
    """Lower end of the 95 % Wilson interval of the success rate, see ``independent_trials``."""
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


def wilson_interval(rate: float, trials: float) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion ``rate`` seen in ``trials`` independent trials."""
    z2 = Z95 * Z95
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def independent_trials(trajectories: Sequence[Trajectory]) -> float:
    """How many independent episodes these are worth: fewer than there are where tasks are repeated.

    A near-deterministic policy does the same at each repetition of a task, so the unit is the task: the number is the
    one whose binomial variance equals the variance of the mean over tasks (Kish's effective sample size), and lies
    between the number of tasks and the number of episodes.
    """
    by_task: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task.id, []).append(trajectory.success)
    tasks, episodes = len(by_task), len(trajectories)
    rate = fmean(trajectory.success for trajectory in trajectories)
    # each task weighs as many episodes as it was played
    spread = sum((sum(wins) - rate * len(wins)) ** 2 for wins in by_task.values()) / episodes**2
    if tasks < 2 or spread == 0:
        return float(tasks)
    variance = spread * tasks / (tasks - 1)
    return min(float(episodes), max(float(tasks), rate * (1 - rate) / variance))


def episode_metrics(trajectories: Sequence[Trajectory]) -> EpisodeMetrics:
    """Summarise at least one episode."""
    success = fmean(t.success for t in trajectories)
    turns = [turn for t in trajectories for turn in t.turns]
    low, high = wilson_interval(success, independent_trials(trajectories))
    return EpisodeMetrics(
        episodes=len(trajectories),
        success=success,
        success_low=low,
        success_high=high,
        episode_return=fmean(t.episode_return for t in trajectories),
        length=fmean(len(t.turns) for t in trajectories),
        illegal=fmean(turn.illegal for turn in turns),
        entropy=fmean(turn.decision.entropy for turn in turns),
    )
