"""Frozen records as lines of JSON, strict in both directions: a value that cannot be read back exactly is an error.

``msgspec`` converts records from and to plain values by their type hints, in C, and checks every type; it needs no
pickle, has no dependencies, and loads in milliseconds, which ``import reflectrl`` can afford. This module adds
error messages in sentences, the check that every field is present and no other, and a limit on nesting. Lines are
written by ``json``, which refuses NaN where ``msgspec`` would write null.

Records are plain frozen dataclasses, and no field is a union of them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from reflectrl.core.errors import InvalidInput, WorkFailed
from reflectrl.core.files import append_text, in_one_move, open_own, read_bytes, read_text
from reflectrl.core.text import shown

T = TypeVar("T")

MAX_LINE_BYTES = 32 * 1024**2
MAX_NESTING = 50
"""Maximum depth of nested lists and objects in a field of any type."""
_NO_JSON = (bytes, bytearray, memoryview)
"""Types that ``msgspec`` would write as strings."""
_PROBLEM_AND_PATH = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)
_LISTS = (tuple, list)
_LEAVES = frozenset((str, int, float, bool, bytes, NoneType))
_Key = tuple[Any, str] | None
"""Place in a value: that of the value around it, and the rest of the path."""


def encode(value: Any) -> Any:
    """Convert a record to plain JSON values: dataclasses and mappings become dicts.

    Raises:
        TypeError: a value that JSON cannot hold.
        ValueError: an integer with thousands of digits.
        RecursionError: a value that contains itself, or hundreds of nested lists.
    """
    return msgspec.to_builtins(value, builtin_types=_NO_JSON, enc_hook=to_plain)


def to_plain(value: Any) -> object:
    """Convert an instance of a subclass of a plain type, such as ``numpy.float64``, to that type.

    Raises:
        TypeError: the value is not an instance of a plain type.
    """
    plain: type[Any]
    for plain in (str, int, float, tuple):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a value of type {type(value).__name__}")


def decode(kind: type[T], value: object, where: str) -> T:
    """Convert ``value``, plain JSON values, to a ``kind`` by its type hints.

    Args:
        kind: a frozen dataclass, a ``msgspec.Struct``, or a type made of these, such as ``tuple[Turn, ...]``.
        value: the parsed JSON.
        where: the beginning of an error's message, e.g. ``metrics.jsonl, line 3``.

    Raises:
        InvalidInput: a missing, unknown or mistyped field; the message names it.
    """
    try:
        record = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error, value, where) from None
    hint: Any = kind
    if not _is_flat(hint):  # menus and probabilities are most of what is read
        _check_exact(record, value, where)
    return record


def _invalid(error: msgspec.ValidationError, value: Any, where: str) -> InvalidInput:
    """Return the error with the value that caused it, found by its path: ``$.turns[0].reward``."""
    problem, path = _PROBLEM_AND_PATH.fullmatch(str(error)).groups("")  # type: ignore[union-attr]  # matches anything
    key = path.partition("[...]")[0]
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", key):
        value = value[int(index) if index else name]
    if missing := re.fullmatch("Object missing required field `(.+)`", problem):
        return InvalidInput(f"{_place(where, key)} lacks field {missing[1]!r}: write the file again.")
    problem = f"{problem[0].lower()}{problem[1:]}"
    return InvalidInput(f"{_place(where, key)} is {shown(value)}; {problem}: write the file again.")


def _place(where: str, key: str) -> str:
    return f"{where}, {key[1:]}" if key.startswith(".") else f"{where}{key}"


def _path(key: _Key) -> str:
    return "" if key is None else f"{_path(key[0])}{key[1]}"


def _check_exact(record: Any, value: Any, where: str, key: _Key = None) -> None:
    """Check recursively that each object has exactly the fields of its record."""
    if isinstance(record, _LISTS):
        for number, (part, given) in enumerate(zip(record, value, strict=True)):
            if part.__class__ not in _LEAVES:
                _check_exact(part, given, where, (key, f"[{number}]"))
    elif isinstance(record, dict):
        if _is_deeper(record, MAX_NESTING):
            raise InvalidInput(
                f"{_place(where, _path(key))} nests too deep; expected at most {MAX_NESTING} lists and objects inside "
                "each other: write the file again."
            )
    elif record.__class__ not in _LEAVES:
        fields = _fields(record.__class__)
        if value.keys() != fields.expected:
            lacks, odd = fields.expected - value.keys(), value.keys() - fields.expected
            fault, name = ("lacks", min(lacks)) if lacks else ("has the unknown", min(odd))
            raise InvalidInput(
                f"{_place(where, _path(key))} {fault} field {name!r}; expected {', '.join(fields.names)}: write the "
                "file again."
            )
        for name, inside in fields.deep:
            part = getattr(record, name)
            if part and part.__class__ not in _LEAVES:
                _check_exact(part, value[name], where, (key, inside))


class _Fields(NamedTuple):
    """Fields of a class of records."""

    names: tuple[str, ...]
    """Names of all fields, in the order of the class."""
    expected: frozenset[str]
    """The same, with that of its tag where it has one."""
    deep: tuple[tuple[str, str], ...]
    """Those whose values hold records or objects of any depth, with their part of a path; the others hold texts,
    numbers, tuples and mappings of these, or mappings of records."""


@functools.cache
def _fields(kind: Any) -> _Fields:
    if dataclasses.is_dataclass(kind):
        names, tag = tuple(each.name for each in dataclasses.fields(kind)), None
    else:
        names, tag = kind.__struct_fields__, kind.__struct_config__.tag_field
    hints = get_type_hints(kind)
    deep = tuple((name, f".{name}") for name in names if not _is_flat(hints[name]))
    return _Fields(names, frozenset((*names, tag) if tag else names), deep)


@functools.cache
def _is_flat(hint: Any) -> bool:
    parts = get_args(hint)
    if get_origin(hint) is Mapping:  # the records in one are not checked
        return _is_flat(parts[1]) or dataclasses.is_dataclass(parts[1])
    if get_origin(hint) in (tuple, list, Union, UnionType):
        return all(_is_flat(part) for part in parts if part is not ...)
    return get_origin(hint) is Literal or hint in (str, int, float, bool, None, NoneType)


def _is_deeper(value: dict[str, Any] | list[Any], levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any([_is_deeper(part, levels - 1) for part in parts if part.__class__ in (dict, list)])


def dump_line(record: Any, path: Path) -> str:
    """Return one record as one line of JSON; ``path`` is used in the error only.

    Raises:
        WorkFailed: a value that JSON cannot hold, such as NaN.
    """
    try:
        line = json.dumps(encode(record), ensure_ascii=False, allow_nan=False) + "\n"
        line.encode()  # raises for an unpaired surrogate, which no file can hold
        return line
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkFailed(
            f"a record for {path} holds a value that JSON cannot hold ({error}); expected text, finite numbers, lists "
            "and objects: fix the environment or player that made it."
        ) from error


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write all records or nothing: the file appears in one move, complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(path) as fresh, fresh.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(dump_line(record, path) for record in records)


def append_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Append records to a file, after removing a last line that a killed run left unfinished.

    The records are on disk when this returns.
    """
    lines = [dump_line(record, path) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    drop_unfinished_line(path)
    append_text(path, "".join(lines))


def read_json(path: Path, expected: str) -> Any:
    """Return the value in a file of JSON, which is ``expected``, as in "the digests of a checkpoint".

    Raises:
        InvalidInput: no such file, or it is not JSON in UTF-8.
    """
    try:
        return json.loads(read_text(path, expected))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not JSON ({error}); expected {expected}.") from error


def drop_unfinished_line(path: Path) -> None:
    """Remove a last line without a newline, which a run leaves that is killed while writing."""
    if not path.is_file() or path.stat().st_size == 0:  # what is not a file is refused where it is read or written
        return
    with open(path, "rb+", opener=open_own) as file:  # noqa: PTH123 - Path has no opener
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def read_jsonl(path: Path, *, skip_unfinished: bool = False) -> Iterator[tuple[str, object]]:
    """Yield ``("FILE, line N", value)`` for each line.

    Args:
        path: the file.
        skip_unfinished: leave out a last line without a newline, which a process is writing or was killed at.

    Raises:
        InvalidInput: no such file, or a line that is too long or is not JSON in UTF-8; JSON has no NaN or infinity.
    """
    yield from parse_jsonl(read_bytes(path, "a file of JSON lines"), path, skip_unfinished=skip_unfinished)


def parse_jsonl(data: bytes, path: Path, *, skip_unfinished: bool = False) -> Iterator[tuple[str, object]]:
    """Yield what ``read_jsonl`` does, of a file that was read; ``path`` is used in names and errors only."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1] if skip_unfinished or lines[-1] == b"" else lines, start=1):
        where = f"{path}, line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise InvalidInput(
                f"{where} has {len(line):,} bytes; expected {MAX_LINE_BYTES:,} at most: remove the line."
            )
        try:
            value = msgspec.json.decode(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{where} is not JSON ({error}); remove the line or write the file again.") from error
        yield where, value
