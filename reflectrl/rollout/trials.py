"""Rows of trials, in which a policy plays the same tasks again and again; on disk as ``trials.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.rollout.metrics import EpisodeMetrics, episode_metrics, wilson_interval


@dataclass(frozen=True)
class TrialRow:
    """One trial of a policy over the tasks of a split, each played once."""

    policy: str
    reflections: str
    """Source of the reflections: the recipe's player, or ``none``."""
    split: str
    memory: bool
    """Whether later trials remember; false for the control that tries again without a memory."""
    trial: int
    """Number of the trial, from 1."""
    remembered: int
    """Past episodes that the memory held in this trial; 0 without one."""
    metrics: EpisodeMetrics
    """Metrics of this trial alone."""
    solved: float
    """Fraction of the tasks that this trial or an earlier one solved: the success of the paper."""
    solved_low: float
    """Lower end of its 95 % Wilson interval, over tasks."""
    solved_high: float
    """Upper end of that interval."""


def trial_row(
    policy: str,
    reflections: str,
    split: str,
    trials: Sequence[Sequence[Trajectory]],
    *,
    memory: bool,
    remembered: int,
) -> TrialRow:
    """Summarise the last of ``trials``, and what it and those before it have solved together."""
    last = trials[-1]
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
    )


def read_trials(path: Path) -> list[TrialRow]:
    """Read a file of trials; raises ``InvalidInput`` on a bad line."""
    return [decode(TrialRow, value, where) for where, value in read_jsonl(path)]
