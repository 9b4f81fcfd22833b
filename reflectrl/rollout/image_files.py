"""Images of records on disk: each image is stored once, in ``images/`` beside the records, under its hash.

``holders`` are paths of field names, such as ``turns.observation``, from a record to the objects in it that have a
field ``images``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reflectrl.core import Image, InvalidInput
from reflectrl.core.files import in_one_move
from reflectrl.core.jsonl import encode


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
