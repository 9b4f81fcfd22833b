"""Files that survive a kill or a power cut: all of the new or all of the old, and on the disk before they count."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from reflectrl.core.errors import InvalidInput

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def fresh_place(path: Path) -> Path:
    """Where ``in_one_move`` has made what is to be at ``path``; processes that help with it find it there."""
    return path.with_name(f".{path.name}.fresh")


@contextlib.contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """Yield a free place beside ``path``; what is made there, a file or a folder, appears at ``path`` all at once.

    After an error, what was at ``path`` before is there still. A folder that is replaced is away for the moment between
    two moves: whoever is killed just then finds neither, so it must be made again.
    """
    fresh, stale = fresh_place(path), path.with_name(f".{path.name}.stale")
    for leftover in (fresh, stale):
        _remove(leftover)
    try:
        yield fresh
        sync(fresh)
        if path.is_dir():
            path.replace(stale)  # a folder that is not empty cannot be replaced in one move
        fresh.replace(path)
    except BaseException:
        _remove(fresh)
        raise
    _sync_entry(path.parent)
    _remove(stale)


def write_text(path: Path, text: str) -> None:
    """All of ``text``, in UTF-8, or what was there before."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """All of ``data``, or what was there before."""
    with in_one_move(path) as fresh:
        fresh.write_bytes(data)


def check_output(path: Path) -> None:
    """See whether a file that a user named as an output can be written: a new one, or a regular one.

    Links are refused like folders and devices: one would be replaced, or what it leads to overwritten.

    Raises:
        InvalidInput: it cannot.

    """
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise InvalidInput(f"{path} cannot be written ({error.strerror}); choose another file.") from error
        kind = None
    if kind not in (None, stat.S_IFREG):
        what = _KINDS.get(kind, "a device")
        raise InvalidInput(f"{path} is {what}; expected a new file, or a regular one: choose another name.")
    there = path if kind else next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not kind and not there.is_dir():
        raise InvalidInput(f"{path} cannot be written: {there} is not a folder; choose another file.")
    if not os.access(there, os.W_OK):
        raise InvalidInput(f"{path} cannot be written: {there} is read-only; choose another file.")


def append_text(path: Path, text: str) -> None:
    """Add ``text`` to the end of a file; it is on the disk when this returns."""
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_entry(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk; what links lead to is left alone."""
    if path.is_symlink():
        return
    if path.is_dir():
        for entry in path.iterdir():
            sync(entry)
    _sync_entry(path)


def _sync_entry(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
