"""Frozen records as lines of JSON, strict in both directions: what cannot be read back exactly is an error."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from reflectrl.core.errors import InvalidInput, WorkFailed
from reflectrl.core.files import append_text, in_one_move

T = TypeVar("T")
_hints = functools.cache(get_type_hints)  # most of the time of reading a record

LONGEST = 32 * 1024**2
"""Characters of a line that is read."""
DEEPEST = 50
"""Lists and objects inside each other, in a field that may hold anything."""


def encode(value: Any) -> Any:
    """A record as plain JSON values: dataclasses and mappings become objects, tuples lists."""
    if is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(kind: type[T], value: object, where: str) -> T:
    """Read ``value`` as a ``kind`` by its type hints; every field must be there, and none besides.

    Raises:
        InvalidInput: a missing, unknown or mistyped field, named after ``where``.

    """
    return cast(T, _decode(kind, value, where))


def _decode(kind: Any, value: Any, where: str) -> Any:
    if kind is Any or (kind in (str, bool, int) and type(value) is kind):
        return value
    if is_dataclass(kind):
        return _decode_record(kind, value, where)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):  # only "X | None" occurs in the records
        return None if value is None else _decode(next(arm for arm in inner if arm is not type(None)), value, where)
    if origin is tuple:
        _need(isinstance(value, list), value, "a list", where)
        if _all_sound(inner[0], value):  # menus and probabilities, most of what is read
            return tuple(value)
        return tuple(_decode(inner[0], item, f"{where}[{number}]") for number, item in enumerate(value))
    if origin is Mapping:
        _need(isinstance(value, dict), value, "an object", where)
        _need(not _deeper(value, DEEPEST), value, f"at most {DEEPEST} lists and objects inside each other", where)
        return value
    if kind is float:
        _need(isinstance(value, int | float) and not isinstance(value, bool), value, "a number", where)
        return _finite(value, where)
    _need(type(value) is kind, value, f"a value of type {kind.__name__}", where)
    return value


def _all_sound(kind: Any, values: list[Any]) -> bool:
    """Whether all of them are plain texts or finite floats, as wanted."""
    if kind is str:
        return all(type(value) is str for value in values)
    return kind is float and all(type(value) is float and math.isfinite(value) for value in values)


def _decode_record(kind: Any, value: Any, where: str) -> Any:
    _need(isinstance(value, dict), value, f"an object with the fields of {kind.__name__}", where)
    hints = _hints(kind)
    names = [field.name for field in fields(kind)]
    for fault, odd in (("lacks", set(names) - set(value)), ("has the unknown", set(value) - set(names))):
        if odd:
            raise InvalidInput(f"{where} {fault} field {min(odd)!r}; expected {', '.join(names)}: write the file anew.")
    return kind(**{name: _decode(hints[name], value[name], f"{where}, {name}") for name in names})


def _finite(value: float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    _need(math.isfinite(number), value, "a number that is finite", where)
    return number


def _deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in parts)


def _need(ok: bool, value: object, expected: str, where: str) -> None:
    if not ok:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise InvalidInput(f"{where} is {shown}; expected {expected}: write the file anew.")


def dump_line(record: Any, path: Path) -> str:
    """One record as one line of JSON; ``path`` is for the error only.

    Raises:
        WorkFailed: a value that JSON cannot hold, such as NaN.

    """
    try:
        line = json.dumps(encode(record), ensure_ascii=False, allow_nan=False) + "\n"
        line.encode()  # half of a surrogate pair is text, but no file can hold it
        return line
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkFailed(
            f"a record for {path} holds a value that JSON cannot hold ({error}); expected text, finite numbers, lists "
            "and objects: mend the environment or player that made it."
        ) from error


def write_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Write all records or nothing: the file appears, complete, in one move."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(path) as fresh, fresh.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(dump_line(record, path) for record in records)


def append_jsonl(path: Path, records: Iterable[Any]) -> None:
    """Add records to the end of a file; a last line that a killed run left unfinished is taken off first.

    They are on the disk when this returns.
    """
    lines = [dump_line(record, path) for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    mend_tail(path)
    append_text(path, "".join(lines))


def mend_tail(path: Path) -> None:
    """Take off a last line without its newline, the mark of a run that was killed while writing."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)


def read_jsonl(path: Path) -> Iterator[tuple[str, object]]:
    """Yield ``("FILE, line N", value)`` for each line.

    Raises:
        InvalidInput: no such file, not UTF-8, or a line that is not JSON, too long or nested too deep.

    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); expected a file of JSON lines.") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text ({error.reason}); expected a file of JSON lines.") from error
    for number, line in enumerate(lines[:-1] if lines[-1] == "" else lines, start=1):
        where = f"{path}, line {number}"
        try:
            value = _parsed(line)
        except ValueError as error:
            raise InvalidInput(f"{where} is not JSON ({error}); remove the line or write the file anew.") from error
        yield where, value


def _parsed(line: str) -> object:
    """The value; a ``ValueError`` says why there is none."""
    if len(line) > LONGEST:
        raise ValueError(f"it is longer than {LONGEST:,} characters")
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(error.msg) from error
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    if re.search(r"\\u[dD][89a-fA-F]", line):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError("it holds half of a character") from error
        except RecursionError as error:
            raise ValueError("it nests too deep") from error
    return value
