"""Trajectories on disk, a header line, then one episode per line; and the growing file of a memory (``EpisodeStore``).

The header holds the prompt format, so every prompt can be reproduced exactly from the file alone.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from reflectrl.core import Image, InvalidInput, Trajectory
from reflectrl.core.errors import need_one_of
from reflectrl.core.files import in_one_move, read_bytes, read_text, write_text
from reflectrl.core.jsonl import append_jsonl, decode, drop_unfinished_line, encode, parse_jsonl, write_jsonl
from reflectrl.prompts import PromptFormat
from reflectrl.seats.experience import Best, Experience, Keep, experience_of, is_kept


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


def parse_with_images(data: bytes, path: Path, holders: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the encoded records in the lines of the file ``path``, with their images put back, as ``parse_jsonl``."""
    lines = parse_jsonl(data, path)
    return ((at, with_images(value, path, at, holders)) for at, value in lines) if b'"sha256"' in data else lines


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
    level = [*record] if isinstance(record, list | tuple) else [record]
    for name in (*names, "images"):
        inner = [each.get(name) for each in level if isinstance(each, dict)]
        level = [part for each in inner for part in (each if isinstance(each, list | tuple) else (each,))]
    yield from (image for image in level if isinstance(image, dict))


FORMAT = "reflectrl-trajectories"
VERSION = 5
HOLDERS = ("turns.observation", "last")
"""Paths of field names to the objects of a trajectory that have images, see ``without_images``."""

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


def write_records(path: Path, form: str, header: Header, records: Iterable[Any], holders: Sequence[str] = ()) -> None:
    """Write a file of the format ``form`` with the header and ``records``, completely or not at all.

    Images in ``holders`` are stored beside it, see ``without_images``.
    """
    write_jsonl(path, (_first_line(form, header), *(without_images(record, path, holders) for record in records)))


def append_records(path: Path, form: str, header: Header, records: Iterable[Any], holders: Sequence[str] = ()) -> None:
    """Append ``records``, as ``write_records`` writes them; a new file starts with ``header``."""
    drop_unfinished_line(path)
    begun = path.exists() and path.stat().st_size > 0
    bare = [without_images(record, path, holders) for record in records]
    append_jsonl(path, bare if begun else (_first_line(form, header), *bare))


def read_records(path: Path, form: str, kind: type[T], holders: Sequence[str] = ()) -> tuple[Header, list[T]]:
    """Read header and records of a file that ``write_records`` wrote.

    Raises:
        InvalidInput: another format or version, an invalid line, or an image that is missing or damaged.
    """
    # one at a time: of a large file, the plain values are many times the records
    lines = parse_with_images(read_bytes(path, "a file of JSON lines"), path, holders)
    opening = next(lines, None)
    if opening is None:
        raise InvalidInput(f"{path} is empty; expected a file of the format {form!r}.")
    return _header(form, *opening), [decode(kind, value, at) for at, value in lines]


def _header(form: str, where: str, first: object) -> Header:
    given = dict(first) if isinstance(first, dict) else {}
    found = given.pop("format", None), given.pop("version", None)
    if found[0] != form:
        raise InvalidInput(f"{where} names the format {found[0]!r}; expected {form!r}: is this the right file?")
    if found[1] != VERSION:
        raise InvalidInput(
            f"{where} names version {found[1]!r} of {form!r}, which another version of reflectrl wrote; this one reads "
            f"version {VERSION}: use that version, or make the run again in a new folder."
        )
    return decode(Header, given, where)


def write_trajectories(path: Path, header: Header, trajectories: Iterable[Trajectory]) -> None:
    """Write a file of trajectories, completely or not at all; images are stored beside it, see ``without_images``."""
    write_records(path, FORMAT, header, trajectories, HOLDERS)


def read_trajectories(path: Path) -> tuple[Header, list[Trajectory]]:
    """Read header and trajectories of a file.

    Raises:
        InvalidInput: another format or version, an invalid line, or an image that is missing or damaged.
    """
    return read_records(path, FORMAT, Trajectory, HOLDERS)


def read_longest(path: Path, count: int) -> list[Trajectory]:
    """Read the ``count`` trajectories of a file that show the longest states, and as many that show most in all.

    Raises:
        InvalidInput: as ``read_trajectories``, of the header and these trajectories.
    """
    data = read_bytes(path, "a file of JSON lines")
    sizes = [_sizes(value) for _, value in parse_jsonl(data, path)]
    chosen = {line for by in (max, sum) for line in nlargest(count, range(1, len(sizes)), key=lambda at: by(sizes[at]))}
    found = []
    for line, (at, value) in enumerate(parse_jsonl(data, path)):
        if line == 0:
            _header(FORMAT, at, value)
        elif line in chosen:
            found.append(decode(Trajectory, with_images(value, path, at, HOLDERS), at))
    return found


def _sizes(trajectory: Any) -> list[float]:
    """Return the sizes of the states in an encoded trajectory; of what is none, an infinite one, so that it is read."""
    try:
        return [len(msgspec.json.encode(turn["observation"])) for turn in trajectory["turns"]] or [0]
    except (KeyError, TypeError):
        return [math.inf]


EXPERIENCES = "reflectrl-experiences"


class EpisodeStore:
    """Past episodes, the best one of each task.

    A success is better than a failure, then a higher return, then fewer steps. The file is append-only, with one line
    an episode: an episode that is no better than that of its task is not written, and a better one replaces it on
    reading.
    """

    def __init__(self, path: Path, header: Header, *, keep: Keep = "success") -> None:
        """Open the store in ``path``, or begin a new one with ``header``.

        Args:
            path: file of the store.
            header: environment and prompts of the episodes to add.
            keep: which episodes to take: those that succeeded (``success``), or also those that failed with a return
                above 0 (``rewarded``).

        Raises:
            InvalidInput: the file is not a store, is damaged before its last line, or belongs to another environment;
                or ``keep`` is none of these.
        """
        need_one_of("keep", keep, get_args(Keep))
        self.path = path
        self._header = header
        self._keep = keep
        self._read()

    def _read(self) -> None:
        self._kept = Best()
        drop_unfinished_line(self.path)
        if self.path.exists() and self.path.stat().st_size:
            found, records = read_records(self.path, EXPERIENCES, Experience)
            if found.env != self._header.env:
                raise InvalidInput(
                    f"{self.path} holds episodes of {found.env!r}, but {self._header.env!r} was given; expected one "
                    "environment a store: choose another file."
                )
            for experience in records:
                self._kept.offer(experience)

    def __len__(self) -> int:
        """Return the number of tasks with an episode."""
        return len(self._kept.of_task)

    def add(self, trajectory: Trajectory) -> bool:
        """Add an episode; it is on the disk when this returns.

        Returns:
            False for an episode that is not kept: it failed, has no step with an effect, or is no better than that of
            its task.
        """
        if not is_kept(trajectory, self._keep) or not trajectory.turns:
            return False
        experience = experience_of(trajectory)
        if not self._kept.offer(experience):
            return False
        append_records(self.path, EXPERIENCES, self._header, [experience])
        return True

    @property
    def text(self) -> str:
        """Present text of the file."""
        return read_text(self.path, "a file of past episodes") if self.path.exists() else ""

    def restore(self, text: str) -> None:
        """Restore the file to an earlier ``text``; raises as opening the store does."""
        write_text(self.path, text)
        self._read()

    def snapshot(self) -> tuple[Experience, ...]:
        """Return the episodes as they are now, oldest first; what is added later does not change it."""
        return tuple(self._kept.of_task.values())
