"""``Tree``: the files below one folder, opened so that no path, no link and no race leads out of it.

A path is opened name by name from the root, each name relative to the folder before it and never through a link; links
are read and followed here. So the file that was checked is the file that is open, whatever is exchanged meanwhile.

``Entries`` checks the number of files and folders while a program may be adding to them. The file system has no limit
on it for a copy, and only counts all of its files, so a rise of that count is merely a reason to count again.
"""

from __future__ import annotations

import errno
import os
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

from reflectrl.core import InvalidInput, WorkFailed

ROOT = PurePosixPath(".")
MAX_DEPTH = 100
"""Maximum depth of folders that are copied and searched for changes."""
MAX_LINKS = 40
"""Maximum number of links on the way to one file, as in Linux."""
MAX_PATH_CHARS = 4096

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY

_REFUSALS = {
    errno.ENOENT: "does not exist; ls shows what is here.",
    errno.ENOTDIR: "is not a folder.",
    errno.EISDIR: "is a folder; expected a file.",
    errno.ELOOP: f"leads through more than {MAX_LINKS} links.",
    errno.ENAMETOOLONG: "is too long for the name of a file.",
    errno.EACCES: "may not be opened.",
    errno.ENXIO: "is neither a file nor a folder.",
    errno.ENODEV: "is neither a file nor a folder.",
}
"""Error codes of the system that mean a wrong path; other errors have other causes."""


@dataclass(frozen=True)
class Limits:
    """Largest size, output and resources of one sandbox."""

    output: int = 4000
    """Maximum number of characters of one command's output."""
    copy_files: int = 200_000
    """Maximum number of files and folders of the repository."""
    copy_bytes: int = 2 * 1024**3
    """Maximum number of bytes of the repository."""
    changed_bytes: int = 128 * 1024**2
    """Maximum number of bytes of all changed files, as they were and as they are now."""
    diff_bytes: int = 4 * 1024**2
    """Maximum number of those bytes that a diff shows; files beyond are named with their sizes."""
    diff_lines: int = 20_000
    """Maximum number of lines of a diff, which names no further files after that."""
    diff_pairs: int = 2_000_000
    """Maximum number of pairs of lines that a diff compares; larger changes are shown as removed and added lines."""
    write_bytes: int = 64 * 1024**2
    """Maximum number of bytes that all commands together may write."""
    write_files: int = 10_000
    """Maximum number of files and folders that all programs together may add."""
    seconds: float = 10.0
    memory_bytes: int = 1024**3
    """Memory limit of one program and all its children, in bytes; the kernel's memory for their sockets counts."""
    processes: int = 32
    """Maximum number of processes and threads of one program at a time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise InvalidInput(f"limit {field.name}={getattr(self, field.name)!r} was given; expected more than 0.")


@dataclass(frozen=True, slots=True)
class Entry:
    """A visible name in a folder."""

    name: str
    folder: bool


def visible(name: str) -> bool:
    """Return whether a name is printable and not hidden; others are not copied, listed, reachable or writable."""
    return name.isprintable() and not name.startswith(".")


def shown(path: PurePosixPath | str, most: int = 80) -> str:
    """Return ``path`` for use in a sentence: short, on one line, and always text."""
    text = str(path)
    text = text if len(text) <= most else f"{text[:most]}..."
    return text if text.isprintable() else ascii(text)


@contextmanager
def opened(folder: str | Path, parent: int | None = None) -> Iterator[int]:
    """Yield a folder's descriptor; ``folder`` must be no link, and is a name in ``parent`` if that is given."""
    fd = os.open(folder, FOLDER, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


class Tree:
    """Files below ``root``. Paths are relative to it; an absolute path starts there, too.

    All methods raise ``InvalidInput`` for a path that cannot be used, and ``WorkFailed`` if the folder no longer
    exists.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._root = os.open(root, FOLDER)
        # Closed only when the last user has gone, since the number might be given to another folder.
        weakref.finalize(self, os.close, self._root)

    def check(self) -> None:
        """Raise ``WorkFailed`` if the folder is no longer where it was."""
        try:
            here = self.root.lstat()
            if os.path.samestat(here, os.fstat(self._root)):
                return
        except (FileNotFoundError, NotADirectoryError):
            pass
        raise WorkFailed("the copy of the repository has gone: it was closed or removed; make another Sandbox.")

    def entries(self, folder: PurePosixPath) -> tuple[Entry, ...]:
        """Return the visible entries, folders first, each part by name. A link counts as its target."""
        with self.folder(folder) as (fd, path), os.scandir(fd) as found:
            entries = [entry for item in found if visible(item.name) and (entry := self._entry(path, item))]
        return tuple(sorted(entries, key=lambda entry: (not entry.folder, entry.name)))

    def files(self) -> Iterator[PurePosixPath]:
        """Yield every visible regular file; links are not followed, and folders without permission are skipped."""
        pending = [ROOT]
        while pending:
            try:
                with self.folder(pending.pop()) as (fd, folder), os.scandir(fd) as found:
                    items = [item for item in found if visible(item.name)]
            except InvalidInput:
                continue
            yield from (folder / item.name for item in items if item.is_file(follow_symlinks=False))
            if len(folder.parts) < MAX_DEPTH:
                pending.extend(folder / item.name for item in items if item.is_dir(follow_symlinks=False))

    def named(self, path: PurePosixPath) -> PurePosixPath:
        """Return ``path`` to a regular file with all links resolved, except perhaps for the last name."""
        fd, _, named = self._reach(path, READ)
        self._check_regular(fd, path)
        os.close(fd)
        return named

    @contextmanager
    def folder(self, path: PurePosixPath) -> Iterator[tuple[int, PurePosixPath]]:
        """Yield a folder's descriptor, and its path without links."""
        fd, real, _ = self._reach(path, FOLDER)
        try:
            yield fd, real
        finally:
            os.close(fd)

    @contextmanager
    def file(self, path: PurePosixPath, flags: int = READ) -> Iterator[int]:
        """Yield a regular file's descriptor, to read or (with ``WRITE``) to write."""
        fd, _, _ = self._reach(path, flags)
        self._check_regular(fd, path)
        try:
            yield fd
        finally:
            os.close(fd)

    def _check_regular(self, fd: int, path: PurePosixPath) -> None:
        """Close ``fd`` and raise ``InvalidInput`` unless it is a regular file without further hard links."""
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            return
        os.close(fd)
        if stat.S_ISREG(found.st_mode):
            raise InvalidInput(f"{shown(path)} has other names too (hard links), perhaps outside the repository.")
        raise InvalidInput(f"{shown(path)} {_REFUSALS[errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.ENXIO]}")

    def _entry(self, folder: PurePosixPath, item: os.DirEntry[str]) -> Entry | None:
        if item.is_dir(follow_symlinks=False):
            return Entry(item.name, folder=True)
        if item.is_file(follow_symlinks=False):
            return Entry(item.name, folder=False)
        return self.target(folder / item.name) if item.is_symlink() else None

    def target(self, link: PurePosixPath) -> Entry | None:
        """Return the entry that a link leads to, under the link's name."""
        try:
            fd, _, _ = self._reach(link, READ)
        except InvalidInput:
            return None
        try:
            mode = os.fstat(fd).st_mode
        finally:
            os.close(fd)
        return Entry(link.name, stat.S_ISDIR(mode)) if stat.S_ISDIR(mode) or stat.S_ISREG(mode) else None

    def _reach(self, path: PurePosixPath, flags: int) -> tuple[int, PurePosixPath, PurePosixPath]:
        """Open what ``path`` leads to: descriptor, path without links, the same with the last name as it was given."""
        if len(str(path)) > MAX_PATH_CHARS:
            raise InvalidInput(f"{shown(path)} is too long; a path has at most {MAX_PATH_CHARS:,} characters.")
        pending = _names(path)
        if not pending:
            self.check()  # an open folder outlives its own removal
        done: list[str] = []
        named: PurePosixPath | None = None
        links = 0
        fd = self._top()
        try:
            while pending:
                name = pending.pop()
                if name == "..":
                    if not done:
                        raise InvalidInput(f"{shown(path)} leads out of the repository; paths stay inside it.")
                    # ".." restarts from the root: that of an open folder would follow it wherever it was moved.
                    pending += reversed(done[:-1])
                    done = []
                    os.close(fd)
                    fd = -1
                    fd = self._top()
                    continue
                if not pending and named is None:
                    named = PurePosixPath(*done, name)
                following = self._open(fd, name, flags if not pending else FOLDER, path)
                if isinstance(following, str):
                    links += 1
                    if links > MAX_LINKS:
                        raise InvalidInput(f"{shown(path)} {_REFUSALS[errno.ELOOP]}")
                    pending += _names(PurePosixPath(following))
                    continue
                os.close(fd)
                fd = following
                done.append(name)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        return fd, PurePosixPath(*done), named or PurePosixPath(*done)

    def _top(self) -> int:
        """Return the root, opened again, because copies of a descriptor share the position in its listing."""
        return os.open(".", FOLDER, dir_fd=self._root)

    def _open(self, folder: int, name: str, flags: int, path: PurePosixPath) -> int | str:
        """Open one name of ``folder``; for a link, return its target instead."""
        try:
            if not visible(name):
                raise FileNotFoundError(errno.ENOENT, name)
            return os.open(name, flags, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                target = _link(folder, name)
                if target.startswith("/"):
                    raise InvalidInput(f"{shown(path)} is a link out of the repository.") from error
                if target:
                    return target
            if error.errno == errno.ENOENT:
                self.check()
            if error.errno not in _REFUSALS:
                raise
            raise InvalidInput(f"{shown(path)} {_REFUSALS[error.errno]}") from error


def _names(path: PurePosixPath) -> list[str]:
    """Return the names of ``path``, the last first."""
    return [name for name in reversed(path.parts) if name.strip("/")]


def _link(folder: int, name: str) -> str:
    """Return the target of a link; empty for anything else."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return ""


PAUSE_FACTOR = 10.0
"""Shortest pause between two counts, as a multiple of the duration of the first count."""
BLIND_S = 1.0
"""Longest pause in seconds: files removed elsewhere on the file system may hide new ones in the copy."""


class Entries:
    """Checks that the folder ``root`` holds no more than ``most`` files and folders."""

    def __init__(self, root: Path, most: int) -> None:
        self._root = root
        self._most = most
        self._left = most - count_entries(root, most)
        self._before = used_inodes(root)
        self._next, self._due = 0.0, time.monotonic() + BLIND_S

    @property
    def full(self) -> bool:
        """True if the folder already held that many at the first count."""
        return self._left <= 0

    def too_many(self) -> bool:
        """Return whether the folder holds more now; count if the file system has gained entries, or after a pause."""
        now = time.monotonic()
        if now < self._next or (now < self._due and not self._risen()):
            return False
        many = count_entries(self._root, self._most) > self._most
        end = time.monotonic()
        self._next, self._due = end + PAUSE_FACTOR * (end - now), end + BLIND_S
        return many

    def _risen(self) -> bool:
        used = used_inodes(self._root)
        return used is None or self._before is None or used - self._before > self._left


def used_inodes(place: Path) -> int | None:
    """Return the number of files and folders on the file system of ``place``; ``None`` without a count (Btrfs)."""
    found = os.statvfs(place)
    return found.f_files - found.f_ffree if found.f_files else None


def count_entries(root: Path, most: int) -> int:
    """Return the number of files and folders below ``root``, at any depth; counting ends soon after ``most``.

    What is moved meanwhile may be counted twice or not at all, but nothing outside of ``root`` is read: the way up ends
    there.
    """
    top = os.open(root, FOLDER)
    here = os.dup(top)
    try:
        number, folders = _listed(here, most)
        pending = [folders]
        while number <= most:
            if pending[-1]:
                inner = _enter(pending[-1].pop(), here)
                if inner is None:
                    continue
                os.close(here)
                here = inner
                found, folders = _listed(here, most - number)
                number += found
                pending.append(folders)
                continue
            pending.pop()
            if not pending or os.path.samestat(os.fstat(here), os.fstat(top)):
                break
            above = os.open("..", FOLDER, dir_fd=here)
            os.close(here)
            here = above
        return number
    finally:
        os.close(here)
        os.close(top)


def _listed(folder: int, most: int) -> tuple[int, list[str]]:
    """Return the number of entries of a folder, up to ``most``, and the names of those that are folders."""
    number, folders = 0, []
    with os.scandir(folder) as found:
        for item in found:
            number += 1
            if number > most:
                break
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
    return number, folders


def _enter(name: str, parent: int) -> int | None:
    """Open a folder, even without permission to read it; ``None`` if it no longer exists."""
    try:
        try:
            return os.open(name, FOLDER, dir_fd=parent)
        except PermissionError:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                itself = f"/proc/self/fd/{handle}"  # the name might lead elsewhere by now
                os.chmod(itself, 0o700)  # noqa: PTH101
                return os.open(itself, os.O_RDONLY | os.O_DIRECTORY)
            finally:
                os.close(handle)
    except OSError:
        return None
