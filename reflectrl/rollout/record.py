"""Trajectories on disk: a header line, then one episode a line.

The header holds the prompt format, so a file by itself re-creates every prompt to the byte.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.files import in_one_move
from reflectrl.core.jsonl import append_jsonl, decode, drop_unfinished_line, encode, read_jsonl, write_jsonl
from reflectrl.prompts import PromptFormat

FORMAT = "reflectrl-trajectories"
VERSION = 5

T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """First line of a file: the settings that all its records share."""

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
    header, records = _read(path, form)
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
    """Write a file of trajectories, all of it or nothing; their images stand in ``images/`` beside it, by hash."""
    write_records(path, FORMAT, header, (_without_images(each, path) for each in trajectories))


def append_trajectories(path: Path, header: Header, trajectories: Sequence[Trajectory]) -> None:
    """Add trajectories to a file, which is begun with ``header`` where there is none yet."""
    append_records(path, FORMAT, header, [_without_images(each, path) for each in trajectories])


def read_trajectories(path: Path) -> tuple[Header, list[Trajectory]]:
    """Read a file of trajectories.

    Raises:
        InvalidInput: another format or version, a bad line, or an image that is missing or damaged; names the file.

    """
    header, records = _read(path, FORMAT)
    return header, [decode(Trajectory, _with_images(record, path, at), at) for at, record in records]


# ---- images ----------------------------------------------------------------------------------------------------------


def _images_of(record: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in an encoded trajectory that stand for images."""
    for turn in _items(record, "turns"):
        if isinstance(turn, dict):
            yield from (image for image in _items(turn.get("observation"), "images") if isinstance(image, dict))


def _items(record: Any, name: str) -> Sequence[Any]:
    items = record.get(name) if isinstance(record, dict) else ()
    return items if isinstance(items, list | tuple) else ()


def _image_file(path: Path, sha256: str) -> Path:
    return path.parent / "images" / f"{sha256}.png"


def _without_images(trajectory: Trajectory, path: Path) -> Any:
    """Write a trajectory's images beside ``path``; return the record that names them by hash."""
    images = {image.sha256: image for turn in trajectory.turns for image in turn.observation.images}
    if not images:
        return trajectory
    for sha256, image in images.items():
        file = _image_file(path, sha256)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with in_one_move(file) as fresh:
                fresh.write_bytes(image.data)
    record = encode(trajectory)
    shown = (image for turn in trajectory.turns for image in turn.observation.images)
    for stored, image in zip(_images_of(record), shown, strict=True):
        stored.clear()
        stored["sha256"] = image.sha256
    return record


def _with_images(record: Any, path: Path, where: str) -> Any:
    """Put the images that an encoded trajectory names by hash back into it."""
    for stored in _images_of(record):
        file = _image_file(path, str(stored.pop("sha256", "")))
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"{where} names the image {file}, which cannot be read ({error.strerror}); copy the folder "
                f"{file.parent.name}/ along with the trajectories."
            ) from error
        if hashlib.sha256(data).hexdigest() != file.stem:
            raise InvalidInput(f"image {file} is not the one that {where} names by its hash; restore it from a copy.")
        stored["data"] = base64.b64encode(data).decode()
    return record
