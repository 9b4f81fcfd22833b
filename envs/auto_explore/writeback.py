"""Changes of a copied repository, as a diff or written back to the original."""

from __future__ import annotations

import difflib
import io
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from reflectrl.core import WorkFailed
from reflectrl.envs.auto_explore.tree import FOLDER, Limits, shown

Contents = Mapping[str, bytes | None]
"""Files by path, with their contents; ``None`` for those that do not exist."""


CONTEXT = 3
"""Number of lines that a diff shows around each change."""


def diff(before: Contents, after: Contents, limits: Limits = Limits()) -> Iterator[str]:  # noqa: B008 - frozen
    """Yield the lines of a unified diff; for a file that is not text or too large, one line that says so."""
    bytes_left, lines_left, pairs_left = limits.diff_bytes, limits.diff_lines, limits.diff_pairs
    paths = iter(after)
    for path in paths:
        if lines_left <= 0:
            yield f"Further files are not shown: {1 + sum(1 for _ in paths):,}"
            return
        old, new = before[path], after[path]
        sizes = f"{path}: {len(old or b''):,} bytes before, {len(new or b''):,} now"
        size = len(old or b"") + len(new or b"")
        lines_left -= 1
        if not size:
            yield f"Empty file {path} {'added' if old is None else 'removed'}"
            continue
        if size > bytes_left:
            yield f"Large file {sizes}"
            continue
        try:
            start, removed, added = _changed(_lines(old), _lines(new))
        except UnicodeDecodeError:
            yield f"Binary file {sizes}"
            continue
        if len(removed) + len(added) > lines_left:
            yield f"Large change of {sizes}"
            continue
        bytes_left -= size
        lines_left -= len(removed) + len(added)
        pairs = len(removed) * len(added)
        compare = pairs <= pairs_left
        pairs_left -= pairs if compare else 0
        yield "--- /dev/null" if old is None else f"--- a/{path}"
        yield "+++ /dev/null" if new is None else f"+++ b/{path}"
        for line in _hunks(start, removed, added, compare=compare):
            yield line.removesuffix("\n")
            if not line.endswith("\n"):
                yield "\\ No newline at end of file"


def _lines(content: bytes | None) -> list[str]:
    return list(io.StringIO((content or b"").decode(), newline="\n"))


def _changed(old: list[str], new: list[str]) -> tuple[int, list[str], list[str]]:
    """Return the lines from the first to the last that differ, with those around them, and how many are before."""
    shorter = min(len(old), len(new))
    same = next((number for number in range(shorter) if old[number] != new[number]), shorter)
    start = max(0, same - CONTEXT)
    rest = shorter - same
    tail = next((number for number in range(rest) if old[-1 - number] != new[-1 - number]), rest)
    end = max(0, tail - CONTEXT)
    return start, old[start : len(old) - end], new[start : len(new) - end]


def _hunks(start: int, removed: Sequence[str], added: Sequence[str], *, compare: bool) -> Iterator[str]:
    """Yield the hunks of a diff of lines that are after ``start`` others; without ``compare``, a single one."""
    if compare:
        hunks: Iterator[str] = itertools.islice(difflib.unified_diff(removed, added, n=CONTEXT), 2, None)  # no names
    else:
        head = f"@@ -1,{len(removed)} +1,{len(added)} @@\n"
        hunks = itertools.chain([head], (f"-{line}" for line in removed), (f"+{line}" for line in added))
    for line in hunks:
        yield re.sub(r"(?<= [-+])\d+", lambda at: f"{start + int(at[0])}", line) if line.startswith("@@") else line


def write_back(repository: Path, changes: Contents) -> None:
    """Make the files of ``repository`` equal to ``changes``; each appears in one move, and no link is followed.

    A file keeps its group and its permissions, but not setuid, setgid and sticky bits.

    Raises:
        WorkFailed: a file, or the folder of a new one, is not this user's, so nothing was written; or a file cannot be
            written, and those before it have been.
    """
    for path in changes:
        found = _nearest(repository / path)
        owner, you = found.lstat().st_uid, os.geteuid()
        if owner != you:
            raise WorkFailed(
                f"{shown(path)} cannot be written: {str(found)!r} is not yours (its owner is user {owner}, you are "
                f"{you}); nothing was written. Work as its owner, or make it yours with chown."
            )
    root = os.open(repository, os.O_RDONLY | os.O_DIRECTORY)
    done = 0
    try:
        for path, content in changes.items():
            try:
                _write(root, PurePosixPath(path), content)
            except OSError as error:
                raise WorkFailed(
                    f"{path} cannot be written to {repository} ({error.strerror}); of {len(changes)} changed files, "
                    f"{done} are written."
                ) from error
            done += 1
    finally:
        os.close(root)


def _write(root: int, path: PurePosixPath, content: bytes | None) -> None:
    with _folder(root, path.parent, make=content is not None) as folder:
        if content is None:
            os.unlink(path.name, dir_fd=folder)
            return
        try:
            former = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            former = None
        fresh = f".{secrets.token_hex(8)}.fresh"  # the file's own name may be as long as a name can be
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
                if former is not None:
                    os.fchmod(fd, _permissions(fd, former))
            os.rename(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(fresh, dir_fd=folder)
            raise


def _permissions(fd: int, former: os.stat_result) -> int:
    """Give a file its former group, and return the permissions that it may have again."""
    mode = former.st_mode & 0o777
    if former.st_gid != os.fstat(fd).st_gid:
        try:
            os.fchown(fd, -1, former.st_gid)
        except PermissionError:  # they were meant for another group
            return mode & ~stat.S_IRWXG
    return mode


def _nearest(path: Path) -> Path:
    """Return ``path`` if something is there, otherwise the nearest folder above it that is."""
    while not os.path.lexists(path):
        path = path.parent
    return path


@contextmanager
def _folder(root: int, path: PurePosixPath, *, make: bool) -> Iterator[int]:
    """Open a folder name by name, never through a link; create the missing ones."""
    fd = os.dup(root)
    try:
        for name in path.parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            inner = os.open(name, FOLDER, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
