"""The rows of an evaluation, on disk as ``eval.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import decode, read_jsonl, write_jsonl
from reflectrl.core.layout import eval_episodes_file
from reflectrl.rollout.metrics import EpisodeMetrics, episode_metrics


@dataclass(frozen=True)
class EvalRow:
    """One row of the results: the players, how they played, and their metrics."""

    policy: str
    """``random``, ``base``, ``sft``, ``rlft``, ``expert`` or ``remote``."""
    reflections: str
    """Source of the reflections: the recipe's player, ``none``, a control (``blank``, ``shuffled``, ``expert``), or the
    name of one of ``eval.reflectors``."""
    mode: str
    """``sampled`` or ``greedy``."""
    split: str
    tasks: int
    """Number of different tasks played."""
    benchmark: str
    """Description of the tasks by the environment; empty where its name suffices, and in older files."""
    metrics: EpisodeMetrics
    group: str = ""
    """Beginning of the ids of the tasks that this row is about, a part of those played; empty for all of them."""
    chosen: tuple[str, ...] = ()
    """Beginnings of the ids of the tasks that were played; empty for all of the split."""


def summarise(
    policy: str, reflections: str, mode: str, split: str, trajectories: Sequence[Trajectory], group: str = ""
) -> EvalRow:
    """Summarise the episodes of one policy, or those of a ``group`` of tasks, as a row without a benchmark."""
    played = [trajectory for trajectory in trajectories if trajectory.task.id.startswith(group)]
    tasks = len({trajectory.task.id for trajectory in played})
    return EvalRow(policy, reflections, mode, split, tasks, "", episode_metrics(played), group)


def episodes_file(row: EvalRow, splits: int) -> str:
    """Name in the run folder of the episodes of ``row``, in an evaluation of this many splits."""
    return eval_episodes_file(row.policy, row.reflections, row.mode, row.split if splits > 1 else None)


_ABSENT = {"benchmark": "", "group": "", "chosen": []}
"""Fields that older files may lack."""


def write_results(path: Path, rows: Sequence[EvalRow]) -> None:
    """Write an evaluation, all of it or nothing."""
    write_jsonl(path, rows)


def read_results(path: Path) -> list[EvalRow]:
    """Read an evaluation.

    Raises:
        InvalidInput: no such file, or a bad line.

    """
    if not path.is_file():
        raise InvalidInput(f"{path} does not exist; run `reflectrl eval` for that run first.")
    lines = list(read_jsonl(path))
    try:
        return [
            decode(EvalRow, {**_ABSENT, **value} if isinstance(value, dict) else value, where) for where, value in lines
        ]
    except InvalidInput as error:
        raise InvalidInput(
            f"{error} If another version wrote it, take 'eval' out of stages.json beside it and run `reflectrl eval` "
            "for that run again."
        ) from error
