"""Metrics of a set of episodes, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from reflectrl.core import Trajectory
from reflectrl.core.metric import metric, metrics_of

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class EpisodeMeans:
    """Means over episodes, which can be averaged over processes that have equally many episodes."""

    success: float = metric("rollout/success", "Success rate", fraction=True)
    """Fraction of the episodes that succeeded; like return and length, an estimate for uniformly drawn training tasks
    where ``rlft.task_priority`` draws others."""
    episode_return: float = metric("rollout/return", "Return")
    """Mean undiscounted return."""
    length: float = metric("rollout/length", "Steps an episode", low=0.0)
    """Mean number of steps per episode."""
    illegal: float = metric("rollout/illegal", fraction=True)
    """Fraction of the steps with an illegal action, including texts that name no legal action and were replaced by a
    random one."""
    entropy: float = metric("rollout/entropy", "Entropy (nats a step)", low=0.0)
    """Mean entropy of the policy over the menu, in nats per step."""


@dataclass(frozen=True, kw_only=True)
class EpisodeMetrics(EpisodeMeans):
    """Means over episodes, with the uncertainty of the success rate."""

    episodes: int
    success_low: float
    """Lower end of the 95 % Wilson interval of the success rate, see ``independent_trials``."""
    success_high: float
    """Upper end of the 95 % Wilson interval of the success rate."""

    @property
    def means(self) -> dict[str, float]:
        """Values of the fields of ``EpisodeMeans``, by name."""
        return {name: getattr(self, name) for name in metrics_of(EpisodeMeans)}


def wilson_interval(rate: float, trials: float) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion ``rate`` seen in ``trials`` independent trials."""
    z2 = Z95 * Z95
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def independent_trials(trajectories: Sequence[Trajectory]) -> float:
    """Return the effective number of independent episodes, which is lower than their number if tasks are repeated.

    A nearly deterministic policy repeats its actions when a task is repeated, so the sampling unit is the task. The
    result is the number of trials whose binomial variance equals the variance of the mean over tasks (Kish's effective
    sample size); it lies between the number of tasks and the number of episodes.
    """
    by_task: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task.id, []).append(trajectory.success)
    tasks, episodes = len(by_task), len(trajectories)
    rate = fmean(trajectory.success for trajectory in trajectories)
    # each task is weighted by its number of episodes
    spread = sum((sum(wins) - rate * len(wins)) ** 2 for wins in by_task.values()) / episodes**2
    if tasks < 2 or spread == 0:
        return float(tasks)
    variance = spread * tasks / (tasks - 1)
    return min(float(episodes), max(float(tasks), rate * (1 - rate) / variance))


def wins_and_episodes(
    trajectories: Sequence[Trajectory], group: str, weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Return the weight of the successful episodes of a group of tasks, and of all its episodes; 1 each if absent."""
    weighted = zip(trajectories, weights or [1.0] * len(trajectories), strict=True)
    found = [(weight * each.success, weight) for each, weight in weighted if each.task.group == group]
    return sum(won for won, _ in found), sum(weight for _, weight in found)


def outcome_means(trajectories: Sequence[Trajectory], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Return success, return and length as means in which episodes count by their weights; equally if absent."""
    return {
        "success": fmean((t.success for t in trajectories), weights),
        "episode_return": fmean((t.episode_return for t in trajectories), weights),
        "length": fmean((len(t.turns) for t in trajectories), weights),
    }


def episode_metrics(trajectories: Sequence[Trajectory]) -> EpisodeMetrics:
    """Return the metrics of a set of episodes, of which there is at least one."""
    outcomes = outcome_means(trajectories)
    turns = [turn for t in trajectories for turn in t.turns]
    low, high = wilson_interval(outcomes["success"], independent_trials(trajectories))
    return EpisodeMetrics(
        episodes=len(trajectories),
        success_low=low,
        success_high=high,
        **outcomes,
        illegal=fmean(turn.illegal or not turn.decision.choice.legal for turn in turns),
        entropy=fmean(turn.decision.entropy for turn in turns),
    )
