"""Digests of what rlft has recorded of each iteration, so that a resume finds what was lost or exchanged since."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core import InvalidInput
from reflectrl.core.artefacts import digest
from reflectrl.core.files import read_bytes, write_bytes
from reflectrl.core.jsonl import append_jsonl, decode, drop_unfinished_line, dump_line, read_jsonl
from reflectrl.core.layout import METRICS, RATINGS, RECORDED, THROUGHPUT

_LINES = (METRICS, THROUGHPUT, RATINGS)
"""Files with a line for each iteration."""


@dataclass(frozen=True)
class Recorded:
    """What was recorded of an iteration."""

    digests: Mapping[str, str]
    """SHA-256 by file: of the iteration's line, or of a file of its own."""


def append_line(run: Path, name: str, record: Any) -> tuple[str, str]:
    """Append an iteration's line to the file ``name`` of a run folder; return the name with the line's digest."""
    append_jsonl(run / name, [record])
    return name, hashlib.sha256(dump_line(record, run / name).encode()).hexdigest()


def whole_file(run: Path, name: str) -> tuple[str, str]:
    """Return the name of a file of an iteration with its digest."""
    return name, digest(run / name).sha256


def rewind(run: Path, iterations: int) -> None:
    """Discard what was recorded after the checkpoint of ``iterations`` iterations, from which training continues.

    Raises:
        InvalidInput: what was recorded before it was cut, emptied or exchanged since.

    """
    drop_unfinished_line(run / RECORDED)
    known = read_jsonl(run / RECORDED) if (run / RECORDED).exists() else iter(())
    recorded = [decode(Recorded, value, where) for where, value in known][:iterations]
    if len(recorded) < iterations:
        raise _lost(run / RECORDED, len(recorded))
    lines = {name: _lines(run / name) for name in _LINES if (run / name).exists()}
    for number, iteration in enumerate(recorded):
        for name, then in iteration.digests.items():
            now: str | None
            if name in _LINES:
                now = hashlib.sha256(b"".join(lines.get(name, [])[number : number + 1])).hexdigest()
            else:
                now = _digest(run / name)
            if now != then:
                raise _lost(run / name, number)
    for name in (*lines, RECORDED):
        if (run / name).exists():
            write_bytes(run / name, b"".join(_lines(run / name)[:iterations]))


def _lines(path: Path) -> list[bytes]:
    """Return the lines of a file with their newlines; splitlines would also split at other characters."""
    return [line + b"\n" for line in read_bytes(path, "a file of JSON lines").split(b"\n")[:-1]]


def _digest(path: Path) -> str | None:
    try:
        return digest(path).sha256
    except OSError:
        return None


def _lost(path: Path, iteration: int) -> InvalidInput:
    return InvalidInput(
        f"{path} does not hold what rlft wrote in iteration {iteration}, by the digests in {RECORDED}: one of them was "
        "cut, emptied, removed or exchanged while no stage was at work. Put back the file that was there, or delete "
        "the run folder to start over."
    )
