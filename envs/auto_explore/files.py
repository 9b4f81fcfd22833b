"""The files of a repository: those that an agent is shown, and among them those that can be asked about."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from reflectrl.core import InvalidInput

MAX_BYTES = 1 << 20
"""Bytes of the largest file that is asked about; in larger ones, only this much is searched for other answers."""


@dataclass(frozen=True)
class RepositoryFiles:
    """The files of one repository."""

    readable: tuple[tuple[str, str], ...]
    """Path and text of the files that can be asked about, by path."""
    others: Mapping[str, str]
    """Path of the other visible files, with text in which the question about another file may be answered, too."""
    skipped: Mapping[str, int]
    """Number of files that cannot be asked about, by reason."""


def readable_files(repository: Path) -> RepositoryFiles:
    """Read a repository, except hidden files, links and what is behind them.

    Raises:
        InvalidInput: no such folder.
    """
    skipped: Counter[str] = Counter()
    readable: list[tuple[str, str]] = []
    others: dict[str, str] = {}
    for file in visible_files(repository, skipped):
        with (repository / file).open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
        text, fault = decoded(content)
        if fault is None:
            readable.append((file, text))
        else:
            others[file] = text
            skipped[fault] += 1
    return RepositoryFiles(tuple(readable), others, dict(sorted(skipped.items())))


def decoded(content: bytes) -> tuple[str, str | None]:
    """Return the text of a file's first ``MAX_BYTES`` + 1 bytes, and the reason if it cannot be asked about."""
    if b"\0" in content:
        return "", "binary"
    if len(content) > MAX_BYTES:
        return content.decode("utf-8", errors="replace"), "too large"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("utf-8", errors="replace"), "not UTF-8"
    return text, None if text.strip() else "empty"


def visible_files(repository: Path, skipped: Counter[str]) -> list[str]:
    """Return the paths of the files that an agent is shown, sorted; count the others in ``skipped``."""
    if not repository.is_dir():
        raise InvalidInput(f"{repository} is not a folder; expected a repository: give the path of a folder of files.")
    found: list[str] = []
    folders = [""]
    while folders:
        below = folders.pop()
        try:
            with os.scandir(repository / below) as entries:
                seen = list(entries)
        except OSError:
            skipped["unreadable"] += 1
            continue
        for entry in seen:
            fault = _hidden(entry)
            if fault is not None:
                skipped[fault] += 1
            elif entry.is_dir(follow_symlinks=False):
                folders.append(f"{below}{entry.name}/")
            else:
                found.append(below + entry.name)
    return sorted(found)


def _hidden(entry: os.DirEntry[str]) -> str | None:
    if entry.name.startswith("."):
        return "hidden"
    if not entry.name.isprintable():
        return "unprintable name"
    if entry.is_symlink():
        return "link"
    if entry.is_dir():
        return None
    if not entry.is_file():
        return "not a file"
    return None if os.access(entry.path, os.R_OK, effective_ids=True) else "unreadable"
