"""Trajectories on disk: a header line, then one episode a line.

The header holds the prompt format, so a file by itself re-creates every prompt to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import append_jsonl, decode, drop_unfinished_line, encode, read_jsonl, write_jsonl
from reflectrl.prompts import Menu, Prompt, PromptFormat, labels

FORMAT = "reflectrl-trajectories"
VERSION = 2

T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """What all records of a file share."""

    env: str
    """Registered name of the environment."""
    options: Mapping[str, Any]
    """Its constructor's parameters."""
    prompt: PromptFormat
    """The layout of every prompt."""


def _first_line(form: str, header: Header) -> dict[str, Any]:
    return {"format": form, "version": VERSION, **encode(header)}


def write_records(path: Path, form: str, header: Header, records: Iterable[Any]) -> None:
    """Write a file of the format ``form``: the header, then ``records``; all of it or nothing."""
    write_jsonl(path, (_first_line(form, header), *records))


def append_records(path: Path, form: str, header: Header, records: Sequence[Any]) -> None:
    """Add ``records`` to a file of the format ``form``, which is begun with ``header`` where there is none yet."""
    drop_unfinished_line(path)
    begun = path.exists() and path.stat().st_size > 0
    append_jsonl(path, records if begun else (_first_line(form, header), *records))


def read_records(path: Path, form: str, kind: type[T]) -> tuple[Header, list[T]]:
    """Read what ``write_records`` wrote.

    Raises:
        InvalidInput: another format or version, or a bad line; names file and line.

    """
    lines = list(read_jsonl(path))
    if not lines:
        raise InvalidInput(f"{path} is empty; expected a file of the format {form!r}.")
    where, first = lines[0]
    given = dict(first) if isinstance(first, dict) else {}
    found = given.pop("format", None), given.pop("version", None)
    if found[0] != form:
        raise InvalidInput(f"{where} names the format {found[0]!r}; expected {form!r}: is this the right file?")
    if found[1] != VERSION:
        raise InvalidInput(f"{where} names version {found[1]!r} of {form!r}; expected {VERSION}: write the file anew.")
    return decode(Header, given, where), [decode(kind, value, at) for at, value in lines[1:]]


def write_trajectories(path: Path, header: Header, trajectories: Iterable[Trajectory]) -> None:
    """Write a file of trajectories, all of it or nothing."""
    write_records(path, FORMAT, header, trajectories)


def append_trajectories(path: Path, header: Header, trajectories: Sequence[Trajectory]) -> None:
    """Add trajectories to a file, which is begun with ``header`` where there is none yet."""
    append_records(path, FORMAT, header, trajectories)


def read_trajectories(path: Path) -> tuple[Header, list[Trajectory]]:
    """Read a file of trajectories.

    Raises:
        InvalidInput: another format or version, or a bad line; names file and line.

    """
    return read_records(path, FORMAT, Trajectory)


def prompts_of(trajectory: Trajectory, layout: PromptFormat) -> list[tuple[Prompt, Prompt]]:
    """The (reflector, policy) prompts of each turn, as they were shown, without hints."""
    pairs: list[tuple[Prompt, Prompt]] = []
    for step, turn in enumerate(trajectory.turns):
        past = trajectory.actions[:step]
        menu = Menu(labels(layout.labels, len(turn.menu)), turn.menu)
        pairs.append(
            (
                layout.reflector(turn.observation, past),
                layout.policy(turn.observation, past, turn.reflection, menu),
            )
        )
    return pairs
