"""Atomic and durable file writes: after a kill or a power cut a file has either its old or its new content.

Files are read here too, so that whatever else is in their place is an error in a sentence.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from reflectrl.core.errors import InvalidInput

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def user_path(given: str | Path) -> Path:
    """Return the path that a user means, with ``~`` for a home folder.

    Raises:
        InvalidInput: there is no such home.
    """
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise InvalidInput(f"path {str(given)!r} begins with a home folder that is not known.") from error


def user_cache() -> Path:
    """Return the folder for what may be deleted at any time, below ``XDG_CACHE_HOME`` or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reflectrl"


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading.

    Raises:
        OSError: there is none that can be read, or it is not a regular one; reading a pipe could wait for ever.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"it is {_KINDS.get(kind, 'a device')}")
    return path.open("rb")


def open_own(name: str | Path, flags: int) -> int:
    """Open a file of a run folder for writing, an ``opener`` of ``open``; a folder from elsewhere may hold anything.

    Raises:
        InvalidInput: it is a link, which may lead to a file of somebody else, or a pipe, which could wait for ever.
    """
    try:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        kind = _KINDS.get(stat.S_IFMT(os.lstat(name).st_mode), "a device")
        raise InvalidInput(f"{name} is {kind}, which is not written; expected a regular file: remove it.") from error


def read_bytes(path: Path, expected: str) -> bytes:
    """Return the content of a file, which is ``expected``, as in "a file of JSON lines".

    Raises:
        InvalidInput: there is no such file, or it cannot be read.
    """
    try:
        with open_regular(path) as file:
            return file.read()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); expected {expected}.") from error


def read_text(path: Path, expected: str) -> str:
    """Return the text of a file in UTF-8; arguments and errors are those of ``read_bytes``."""
    try:
        return read_bytes(path, expected).decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not text in UTF-8 ({error.reason}); expected {expected}.") from error


def fresh_place(path: Path) -> Path:
    """Return the temporary path at which ``in_one_move`` prepares ``path``, for other processes that write into it."""
    return path.with_name(f".{path.name}.fresh")


@contextlib.contextmanager
def in_one_move(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; the file or folder created there then replaces ``path`` in one move.

    After an error in the block, ``path`` is unchanged. Replacing a folder takes two moves: after a kill or an error
    between them, neither the old nor the new folder is at ``path``, so it must be made again.

    Raises:
        InvalidInput: a file would replace a folder, with all that is in it.
    """
    fresh, stale = fresh_place(path), path.with_name(f".{path.name}.stale")
    for leftover in (fresh, stale):
        _remove(leftover)
    try:
        yield fresh
        sync(fresh)
        if path.is_dir() and not fresh.is_dir():
            raise InvalidInput(f"{path} is a folder; expected a file, or nothing, to write one there: move it away.")
        if path.is_dir():
            path.replace(stale)  # a folder that is not empty cannot be replaced in one move
        fresh.replace(path)
    except BaseException:
        _remove(fresh)
        raise
    _sync_entry(path.parent)
    _remove(stale)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8; after an error the file has its old content."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data``; after an error the file has its old content."""
    with in_one_move(path) as fresh:
        fresh.write_bytes(data)


def check_output(path: Path) -> None:
    """Check that ``path``, named by a user as an output, can be written: as a new file, or over a regular one.

    Links are refused, like folders and devices: a write would replace the link or overwrite its target.

    Raises:
        InvalidInput: the file cannot be written.
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


def write_output(path: Path, data: str | bytes) -> None:
    """Write the whole of ``path``, named by a user as an output, or nothing.

    Raises:
        InvalidInput: the file cannot be written.
    """
    try:
        write_bytes(path, data.encode() if isinstance(data, str) else data)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written ({error.strerror}); choose another file.") from error


def append_text(path: Path, text: str) -> None:
    """Append ``text`` to a file; the text is on disk when this returns."""
    new = not path.exists()
    with open(path, "a", encoding="utf-8", newline="\n", opener=open_own) as file:  # noqa: PTH123 - Path has no opener
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if new:
        _sync_entry(path.parent)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock on ``folder``; another thread or process that asks for it waits until the block ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with its content, is on disk; links are skipped."""
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
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder but hidden ones."""
    inside = path.rglob("[!.]*") if path.is_dir() else [path]
    return sum(each.stat().st_size for each in inside if each.is_file())


def fingerprint(path: Path) -> str | None:
    """Return the SHA-256 of a file, or of all files in a folder but hidden ones; ``None`` if it cannot be read."""
    try:
        if not path.is_dir():
            with open_regular(path) as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        inside = [f"{each.name} {fingerprint(each)}\0" for each in sorted(path.iterdir()) if each.name[0] != "."]
        return hashlib.sha256("".join(inside).encode(errors="replace")).hexdigest()
    except (OSError, ValueError):
        return None
