"""Changes of a copied repository, as a diff or written back to the original."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from reflectrl.core import WorkFailed
from reflectrl.envs.auto_explore.tree import FOLDER

Contents = Mapping[str, bytes | None]
"""Files by path, with their contents; ``None`` for those that do not exist."""


def diff(before: Contents, after: Contents) -> Iterator[str]:
    """Yield the lines of a unified diff; for a file that is no text, one line that says so."""
    for path, new in after.items():
        old = before[path]
        try:
            removed, added = ((data or b"").decode().splitlines(keepends=True) for data in (old, new))
        except UnicodeDecodeError:
            yield f"Binary file {path}: {len(old or b''):,} bytes before, {len(new or b''):,} now"
            continue
        names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
        if not removed and not added:
            yield f"Empty file {path} {'added' if old is None else 'removed'}"
        for line in difflib.unified_diff(removed, added, *names):
            yield line.removesuffix("\n")
            if not line.endswith("\n"):
                yield "\\ No newline at end of file"


def write_back(repository: Path, changes: Contents) -> None:
    """Make the files of ``repository`` equal to ``changes``; each appears in one move, and no link is followed.

    Raises:
        WorkFailed: a file cannot be written; those before it have been.

    """
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
            mode = stat.S_IMODE(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            mode = None
        fresh = f".{path.name}.fresh"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(fd)
                if mode is not None:
                    os.fchmod(fd, mode)
            os.rename(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(fresh, dir_fd=folder)
            raise


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
