"""``Run``: what a run folder holds, read in order to be shown. Nothing here writes into it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import decode, read_jsonl
from reflectrl.rollout.results import EvalRow, read_results

T = TypeVar("T")

LARGEST = 1e12
"""Of the numbers that are shown; curves over larger ones could not be drawn."""


@dataclass(frozen=True)
class Point:
    """What is shown of a line of ``metrics.jsonl``."""

    iteration: int
    stage: str
    success: float
    episode_return: float
    entropy: float
    env_steps: int


@dataclass(frozen=True)
class Pace:
    """What is shown of a line of ``throughput.jsonl``."""

    seconds: float
    reflection_hit_rate: float


@dataclass(frozen=True)
class Run:
    """One run folder; a part that its stage has not written yet is empty."""

    name: str
    """Its folder's name; the path as given where several are called the same."""
    path: Path
    recipe: str
    """``recipe.yaml`` as it stands."""
    rows: tuple[EvalRow, ...]
    points: tuple[Point, ...]
    paces: tuple[Pace, ...]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run folders; one that is given twice is read once.

    Raises:
        InvalidInput: none was given, or one is no run folder or holds a damaged file.

    """
    if not paths:
        raise InvalidInput("no run folder was given; expected at least one, such as runs/nano.")
    folders = {path.resolve(): path for path in paths}
    times = Counter(folder.name for folder in folders)
    return [_read_run(folder, folder.name if times[folder.name] == 1 else str(p)) for folder, p in folders.items()]


def _read_run(path: Path, name: str) -> Run:
    try:
        recipe = (path / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInput(
            f"{path} is no run folder: its recipe.yaml cannot be read ({error.strerror}); "
            "expected a folder that `reflectrl run` made."
        ) from error
    results = path / "eval.jsonl"
    rows = read_results(results) if results.is_file() else []
    points, paces = _read_some(path / "metrics.jsonl", Point), _read_some(path / "throughput.jsonl", Pace)
    return Run(name, path, recipe, tuple(rows), points, paces)


def _read_some(path: Path, kind: type[T]) -> tuple[T, ...]:
    """The fields of ``kind`` out of each line; nothing where there is no file yet."""
    if not path.is_file():
        return ()
    records = []
    for where, value in read_jsonl(path):
        known = {k: v for k, v in value.items() if k in kind.__annotations__} if isinstance(value, dict) else value
        record = decode(kind, known, where)
        if any(abs(number) > LARGEST for number in vars(record).values() if not isinstance(number, str)):
            raise InvalidInput(f"{where} holds a number beyond {LARGEST:g}; remove the line, or train anew.")
        records.append(record)
    return tuple(records)
