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
from reflectrl.prompts import PromptFormat
from reflectrl.rollout.image_files import with_images, without_images

FORMAT = "reflectrl-trajectories"
VERSION = 5
HOLDERS = ("turns", "observation")
"""Where a trajectory has its images."""

T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """First line of a file: the settings that all its records share."""

    env: str
    """Registered name of the environment."""
    options: Mapping[str, Any]
    """Parameters of the environment's constructor."""
    prompt: PromptFormat
    """The layout of every prompt."""


def _first_line(form: str, header: Header) -> dict[str, Any]:
    return {"format": form, "version": VERSION, **encode(header)}


def write_records(
    path: Path, form: str, header: Header, records: Iterable[Any], holders: Sequence[str] | None = None
) -> None:
    """Write a file of the format ``form``: the header, then ``records``; all of it or nothing.

    Images in ``holders`` stand beside it, see ``image_files``.
    """
    write_jsonl(path, (_first_line(form, header), *_bare(records, path, holders)))


def append_records(
    path: Path, form: str, header: Header, records: Sequence[Any], holders: Sequence[str] | None = None
) -> None:
    """Add ``records`` to a file of the format ``form``, which is begun with ``header`` where there is none yet."""
    records = _bare(records, path, holders)
    drop_unfinished_line(path)
    begun = path.exists() and path.stat().st_size > 0
    append_jsonl(path, records if begun else (_first_line(form, header), *records))


def _bare(records: Iterable[Any], path: Path, holders: Sequence[str] | None) -> list[Any]:
    return [record if holders is None else without_images(record, path, holders) for record in records]


def read_records(path: Path, form: str, kind: type[T], holders: Sequence[str] | None = None) -> tuple[Header, list[T]]:
    """Read what ``write_records`` wrote.

    Raises:
        InvalidInput: another format or version, a bad line, or an image that is missing or damaged; names the file.

    """
    header, records = _read(path, form)
    if holders is not None:
        records = [(at, with_images(value, path, at, holders)) for at, value in records]
    return header, [decode(kind, value, at) for at, value in records]


def _read(path: Path, form: str) -> tuple[Header, list[tuple[str, object]]]:
    """Return the header of a file, and its other lines with the place of each."""
    lines = list(read_jsonl(path))
    if not lines:
        raise InvalidInput(f"{path} is empty; expected a file of the format {form!r}.")
    where, first = lines[0]
    given = dict(first) if isinstance(first, dict) else {}
    found = given.pop("format", None), given.pop("version", None)
    if found[0] != form:
        raise InvalidInput(f"{where} names the format {found[0]!r}; expected {form!r}: is this the right file?")
    if found[1] != VERSION:
        raise InvalidInput(
            f"{where} names version {found[1]!r} of {form!r}, which another version of reflectrl wrote; this one reads "
            f"version {VERSION}: use that version, or make the run again in a new folder."
        )
    return decode(Header, given, where), lines[1:]


def write_trajectories(path: Path, header: Header, trajectories: Iterable[Trajectory]) -> None:
    """Write a file of trajectories, all of it or nothing; their images stand beside it, see ``image_files``."""
    write_records(path, FORMAT, header, trajectories, HOLDERS)


def append_trajectories(path: Path, header: Header, trajectories: Sequence[Trajectory]) -> None:
    """Add trajectories to a file, which is begun with ``header`` where there is none yet."""
    append_records(path, FORMAT, header, trajectories, HOLDERS)


def read_trajectories(path: Path) -> tuple[Header, list[Trajectory]]:
    """Read a file of trajectories.

    Raises:
        InvalidInput: another format or version, a bad line, or an image that is missing or damaged; names the file.

    """
    return read_records(path, FORMAT, Trajectory, HOLDERS)
