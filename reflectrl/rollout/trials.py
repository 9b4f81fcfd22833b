"""Rows of trials, in which a policy plays the same tasks repeatedly; stored in ``trials.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.rollout.metrics import EpisodeMetrics, episode_metrics, wilson_interval


@dataclass(frozen=True)
class TrialRow:
    """Results of one trial of a policy, which plays each task of a split once."""

    policy: str
    reflections: str
    """Source of the reflections: the recipe's player, or ``none``."""
    split: str
    memory: bool
    """Whether the trials have a memory; false for the control, which repeats the tasks without one."""
    trial: int
    """Number of the trial, from 1."""
    remembered: int
    """Number of past episodes in memory during this trial; 0 without a memory."""
    metrics: EpisodeMetrics
    """Metrics of this trial alone."""
    solved: float
    """Fraction of the tasks that this trial or an earlier one solved, which the paper calls success."""
    solved_low: float
    """Lower end of the 95 % Wilson interval of ``solved``, over tasks."""
    solved_high: float
    """Upper end of the 95 % Wilson interval of ``solved``."""
    group: str = ""
    """Beginning of the ids of the tasks that count; empty for all."""


def trial_row(
    policy: str,
    reflections: str,
    split: str,
    trials: Sequence[Sequence[Trajectory]],
    *,
    memory: bool,
    remembered: int,
    group: str = "",
) -> TrialRow:
    """Return the row of the last of ``trials``, with the fraction of tasks that all of ``trials`` together solved.

    Only tasks count whose id starts with ``group``, of which there is at least one.
    """
    last = [trajectory for trajectory in trials[-1] if trajectory.task.id.startswith(group)]
    solved = {trajectory.task.id for played in trials for trajectory in played if trajectory.success}
    tasks = {trajectory.task.id for trajectory in last}
    rate = len(solved & tasks) / len(tasks)
    low, high = wilson_interval(rate, len(tasks))
    return TrialRow(
        policy,
        reflections,
        split,
        memory,
        len(trials),
        remembered,
        episode_metrics(last),
        rate,
        low,
        high,
        group,
    )


def read_trials(path: Path) -> list[TrialRow]:
    """Read the rows of trials; raise ``InvalidInput`` on an invalid line."""
    return [decode(TrialRow, value, where) for where, value in read_jsonl(path)]
