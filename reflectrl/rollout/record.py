"""Trajectories on disk: a header line, then one episode per line.

The header holds the prompt format, so every prompt can be reproduced exactly from the file alone.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.core import Image, InvalidInput, Trajectory
from reflectrl.core.files import in_one_move
from reflectrl.core.jsonl import append_jsonl, decode, drop_unfinished_line, encode, read_jsonl, write_jsonl
from reflectrl.prompts import PromptFormat


def without_images(record: Any, path: Path, holders: Sequence[str]) -> Any:
    """Write the images of a record for the file ``path``; return the encoded record, which names them by hash."""
    paths = _paths(holders)
    images: list[Image] = [image for names in paths for holder in _objects(record, names) for image in holder.images]
    if not images:
        return record
    for image in images:
        file = _image_file(path, image.sha256)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            with in_one_move(file) as fresh:
                fresh.write_bytes(image.data)
    encoded = encode(record)
    places = (place for names in paths for place in _stored(encoded, names))
    for stored, image in zip(places, images, strict=True):
        stored.clear()
        stored["sha256"] = image.sha256
    return encoded


def with_images(record: Any, path: Path, where: str, holders: Sequence[str]) -> Any:
    """Return an encoded record of the file ``path`` with the images that it names by hash put back.

    Raises:
        InvalidInput: an image is missing or damaged; the message names its file, and the record by ``where``.

    """
    for stored in (place for names in _paths(holders) for place in _stored(record, names)):
        file = _image_file(path, str(stored.pop("sha256", "")))
        try:
            data = file.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"{where} names the image {file}, which cannot be read ({error.strerror}); copy the folder "
                f"{file.parent.name}/ along with the file {path.name}."
            ) from error
        if hashlib.sha256(data).hexdigest() != file.stem:
            raise InvalidInput(f"image {file} is not the one that {where} names by its hash; restore it from a copy.")
        stored["data"] = base64.b64encode(data).decode()
    return record


def _image_file(path: Path, sha256: str) -> Path:
    return path.parent / "images" / f"{sha256}.png"


def _paths(holders: Sequence[str]) -> list[list[str]]:
    return [holder.split(".") for holder in holders]


def _objects(record: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield the objects in a record that have images; a field may be ``None``."""
    if isinstance(record, tuple):
        for each in record:
            yield from _objects(each, names)
    elif names and record is not None:
        yield from _objects(getattr(record, names[0]), names[1:])
    elif record is not None:
        yield record


def _stored(record: Any, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects that represent images in an encoded record, which may be damaged."""
    if isinstance(record, list | tuple):
        for each in record:
            yield from _stored(each, names)
    elif isinstance(record, dict) and names:
        yield from _stored(record.get(names[0]), names[1:])
    elif isinstance(record, dict) and isinstance(images := record.get("images"), list | tuple):
        yield from (image for image in images if isinstance(image, dict))


FORMAT = "reflectrl-trajectories"
VERSION = 5
HOLDERS = ("turns.observation", "last")
"""Paths of field names to the objects of a trajectory that have images, see ``image_files``."""

T = TypeVar("T")


@dataclass(frozen=True)
class Header:
    """First line of a file, with the settings that all its records share."""

    env: str
    """Registered name of the environment."""
    options: Mapping[str, Any]
    """Parameters of the environment's constructor."""
    prompt: PromptFormat
    """Layout of every prompt."""


def _first_line(form: str, header: Header) -> dict[str, Any]:
    return {"format": form, "version": VERSION, **encode(header)}


def write_records(
    path: Path, form: str, header: Header, records: Iterable[Any], holders: Sequence[str] | None = None
) -> None:
    """Write a file of the format ``form`` with the header and ``records``, completely or not at all.

    Images in ``holders`` are stored beside it, see ``image_files``.
    """
    write_jsonl(path, (_first_line(form, header), *_bare(records, path, holders)))


def append_records(
    path: Path, form: str, header: Header, records: Iterable[Any], holders: Sequence[str] | None = None
) -> None:
    """Append ``records``, as ``write_records`` writes them; a new file starts with ``header``."""
    drop_unfinished_line(path)
    begun = path.exists() and path.stat().st_size > 0
    bare = _bare(records, path, holders)
    append_jsonl(path, bare if begun else (_first_line(form, header), *bare))


def _bare(records: Iterable[Any], path: Path, holders: Sequence[str] | None) -> list[Any]:
    return [record if holders is None else without_images(record, path, holders) for record in records]


def read_records(path: Path, form: str, kind: type[T], holders: Sequence[str] | None = None) -> tuple[Header, list[T]]:
    """Read header and records of a file that ``write_records`` wrote.

    Raises:
        InvalidInput: another format or version, an invalid line, or an image that is missing or damaged.

    """
    header, records = _read(path, form, holders)
    return header, [decode(kind, value, at) for at, value in records]


def _read(path: Path, form: str, holders: Sequence[str] | None) -> tuple[Header, list[tuple[str, object]]]:
    """Return the header of a file, and the values of its other lines with their images, each with ``FILE, line N``."""
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
    records = [(at, value if holders is None else with_images(value, path, at, holders)) for at, value in lines[1:]]
    return decode(Header, given, where), records


def write_trajectories(path: Path, header: Header, trajectories: Iterable[Trajectory]) -> None:
    """Write a file of trajectories, completely or not at all; images are stored beside it, see ``image_files``."""
    write_records(path, FORMAT, header, trajectories, HOLDERS)


def read_trajectories(path: Path) -> tuple[Header, list[Trajectory]]:
    """Read header and trajectories of a file.

    Raises:
        InvalidInput: another format or version, an invalid line, or an image that is missing or damaged.

    """
    return read_records(path, FORMAT, Trajectory, HOLDERS)
