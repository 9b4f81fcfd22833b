"""Rows of the results table of an evaluation, stored in ``eval.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import decode, read_jsonl, write_jsonl
from reflectrl.core.layout import eval_episodes_file
from reflectrl.rollout.metrics import EpisodeMetrics, episode_metrics


@dataclass(frozen=True)
class ReflectorShares:
    """Fractions of steps and of episodes in an audit of a reflector; ``None`` for a fraction of none."""

    steps: int
    """Number of steps judged."""
    right: float | None
    """Steps whose reflection describes the state as the expert would."""
    right_taught: float | None
    """The same of the steps whose prompt is one of the reflector's SFT rows."""
    right_new: float | None
    """The same of the other steps."""
    good_when_right: float | None
    """Steps with a right reflection whose action is no mistake."""
    good_when_wrong: float | None
    """The same of the steps with a wrong one."""
    success_never_wrong: float | None
    """Episodes with right reflections only that succeed."""
    success_once_wrong: float | None
    """The same of the other episodes."""


@dataclass(frozen=True)
class EvalRow:
    """One row of the results: the players, how actions were chosen, and the metrics."""

    policy: str
    """Name of the policy as in ``eval.policies``: ``random``, ``zero_shot``, ``base``, ``sft``, ``rlft``, ``expert`` or
    ``remote``."""
    reflections: str
    """Source of the reflections: the recipe's player, ``none``, a control (``blank``, ``shuffled``, ``expert``), or the
    name of one of ``eval.reflectors``."""
    mode: str
    """Choice of actions: ``sampled`` or ``greedy``."""
    split: str
    tasks: int
    """Number of distinct tasks played."""
    benchmark: str
    """Description of the task set by the environment; empty where its name suffices."""
    metrics: EpisodeMetrics
    group: str = ""
    """Prefix of task ids to which the row is restricted; empty for all tasks played."""
    chosen: tuple[str, ...] = ()
    """Prefixes of task ids to which the evaluation was restricted; empty for all tasks of the split."""
    like_training: int = 0
    """Number of the tasks played that begin like a training task: they look the same at first. At most 48 training
    tasks are compared."""
    cut_prompts: float | None = None
    """Fraction of the policy's prompts that were cut to fit ``model.max_length``; ``None`` for a policy without a local
    model, and for a group."""
    audit: ReflectorShares | None = None
    """Audit of the reflector in some of the episodes; ``None`` where no expert taught one, and for a group."""


def summarise(
    policy: str, reflections: str, mode: str, split: str, trajectories: Sequence[Trajectory], group: str = ""
) -> EvalRow:
    """Return the row of one policy's episodes, restricted to a ``group`` of tasks if given, without a benchmark."""
    played = [trajectory for trajectory in trajectories if trajectory.task.id.startswith(group)]
    tasks = len({trajectory.task.id for trajectory in played})
    return EvalRow(policy, reflections, mode, split, tasks, "", episode_metrics(played), group)


def begin_alike(rows: Sequence[EvalRow]) -> dict[str, str]:
    """Return for each split with tasks that begin like training tasks how many do: ``3 of 20 tasks begin like ...``."""
    most: dict[str, EvalRow] = {}
    for row in rows:
        if row.like_training and not row.group:
            most[row.split] = max(row, most.get(row.split, row), key=lambda each: each.like_training)
    return {
        split: f"{row.like_training} of {row.tasks} tasks begin like a training task" for split, row in most.items()
    }


def episodes_file(row: EvalRow, splits: int) -> str:
    """Return the name of the file with the episodes of ``row``, in an evaluation of ``splits`` splits."""
    return eval_episodes_file(row.policy, row.reflections, row.mode, row.split if splits > 1 else None)


def write_results(path: Path, rows: Sequence[EvalRow]) -> None:
    """Write the rows of an evaluation, completely or not at all."""
    write_jsonl(path, rows)


def read_results(path: Path) -> list[EvalRow]:
    """Read the rows of an evaluation.

    Raises:
        InvalidInput: no such file, or an invalid line.

    """
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist; run `reflectrl eval` for that run first.")
    return [decode(EvalRow, value, where) for where, value in read_jsonl(path)]
