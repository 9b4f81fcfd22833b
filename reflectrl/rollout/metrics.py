"""Metrics of a set of episodes, with their uncertainty, and how a metric is displayed.

A metric is one field of a record, declared with ``metric(...)``. The trackers, the plots and the report take its name,
title and bounds from that declaration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from statistics import fmean
from typing import Any

from reflectrl.core import Trajectory

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Metric:
    """Display of a metric."""

    tracked: str
    """Name in an experiment tracker: the group, a slash, the name."""
    title: str = ""
    """Label of its axis; empty for a metric that is not drawn."""
    fraction: bool = False
    """True if the metric lies between 0 and 1."""
    low: float | None = None
    """Lower bound of the metric; ``None`` without one."""
    panel: bool = False
    """True if the HTML report draws the metric."""
    late: bool = False
    """True if files of older versions may lack the metric."""

    @property
    def name(self) -> str:
        """Name on the command line: the one in a tracker, without the group."""
        return self.tracked.rpartition("/")[2]


def metric(
    tracked: str,
    title: str = "",
    *,
    fraction: bool = False,
    low: float | None = None,
    panel: bool = False,
    late: bool = False,
    default: Any = MISSING,
) -> Any:
    """Declare a field of a record as a metric; see ``Metric`` for the arguments, and ``dataclasses.field``."""
    shown = Metric(tracked, title, fraction, 0.0 if fraction else low, panel, late)
    return field(default=default, metadata={"metric": shown})


def metrics_of(record: type[Any]) -> dict[str, Metric]:
    """Return the metrics among the fields of a record, by the names of the fields."""
    return {each.name: each.metadata["metric"] for each in fields(record) if "metric" in each.metadata}


@dataclass(frozen=True, kw_only=True)
class EpisodeMeans:
    """Means over episodes, which can be averaged over processes with as many episodes each."""

    success: float = metric("rollout/success", "Success rate", fraction=True, panel=True)
    """Fraction of the episodes that succeeded."""
    episode_return: float = metric("rollout/return", "Return", panel=True)
    """Mean undiscounted return."""
    length: float = metric("rollout/length", "Steps an episode", low=0.0, panel=True, late=True)
    """Mean number of steps an episode."""
    illegal: float = metric("rollout/illegal", "Illegal actions a step", fraction=True, late=True)
    """Mean number of illegal actions a step, those included that a policy only wrote, in whose place a random one was
    played."""
    entropy: float = metric("rollout/entropy", "Entropy (nats a step)", low=0.0, panel=True)
    """Mean entropy of the policy over the menu, in nats a step."""


@dataclass(frozen=True, kw_only=True)
class EpisodeMetrics(EpisodeMeans):
    """Means over episodes, with the uncertainty of the success rate."""

    episodes: int
    success_low: float
    """Lower end of the 95 % Wilson interval of the success rate, see ``independent_trials``."""
    success_high: float
    """Upper end of that interval."""

    @property
    def means(self) -> dict[str, float]:
        """The fields of ``EpisodeMeans``."""
        return {name: getattr(self, name) for name in metrics_of(EpisodeMeans)}


def wilson_interval(rate: float, trials: float) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion ``rate`` seen in ``trials`` independent trials."""
    z2 = Z95 * Z95
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def independent_trials(trajectories: Sequence[Trajectory]) -> float:
    """Return the effective number of independent episodes: fewer than there are where tasks are repeated.

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


def wins_and_episodes(trajectories: Iterable[Trajectory], group: str) -> tuple[int, int]:
    """Return how many episodes of a group of tasks succeeded, and how many there are."""
    successes = [trajectory.success for trajectory in trajectories if trajectory.task.group == group]
    return sum(successes), len(successes)


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
        illegal=fmean(turn.illegal or not turn.decision.choice.legal for turn in turns),
        entropy=fmean(turn.decision.entropy for turn in turns),
    )


def memory_means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the fields ``memory_*`` of ``Iteration``, by name; nothing where no memory was asked."""
    said = [turn.said["memory"].text for each in trajectories for turn in each.turns if "memory" in turn.said]
    return {"memory_hits": fmean(bool(text) for text in said)} if said else {}
