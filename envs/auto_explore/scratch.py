"""``Scratch``: a folder for temporary files that is always removed, even after a SIGKILL.

The process that creates it holds a lock, which the kernel releases when the last process that has it has ended. So the
next process that creates one recognises folders that are no longer used, and removes them.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from reflectrl.envs.auto_explore.tree import FOLDER, opened

PREFIX = "reflectrl-scratch-"
"""Prefix of the folders that are removed when no process holds their lock; nothing else is removed."""


class Scratch:
    """A new folder, removed by ``close``, with its last user, or when the interpreter exits.

    Folders of this user that a killed process left behind are removed first.
    """

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.folder, lock = _make()
        self.close = weakref.finalize(self, _close, self.folder, lock, os.getpid())


def _make() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        with suppress(FileNotFoundError):
            lock = os.open(folder, FOLDER)
            with suppress(OSError):  # without locks on this file system, other processes leave the folder alone
                fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), folder.stat()):
                    return folder, lock
            os.close(lock)  # another process removed it as unused, before it was locked


def _sweep(place: Path) -> None:
    """Remove folders that were left behind; those that cannot be removed stay."""
    with suppress(OSError), os.scandir(place) as found:
        left = sorted(item.path for item in found if item.name.startswith(PREFIX))
        for path in left:
            with suppress(OSError), opened(path) as top:
                if os.fstat(top).st_uid == os.geteuid():
                    fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _empty(top)
                    Path(path).rmdir()


def _close(folder: Path, lock: int, maker: int) -> None:
    if os.getpid() != maker:  # a forked child must not take its parent's files away
        return
    try:
        with suppress(FileNotFoundError):
            _empty(lock)
            folder.rmdir()
    finally:
        os.close(lock)


def _empty(top: int) -> None:
    """Remove the contents of a folder, however deep: each folder in it is moved to the top before it is emptied."""
    left = [int(name[1:]) for name in os.listdir(top) if name[1:].isdecimal()]  # left by a removal that was killed
    numbers = itertools.count(max(left, default=0) + 1)
    pending = ["."]
    while pending:
        name = pending.pop()
        with suppress(FileNotFoundError), opened(name, top) as folder:
            with os.scandir(folder) as found:
                items = list(found)
            for item in items:
                if not item.is_dir(follow_symlinks=False):
                    os.unlink(item.name, dir_fd=folder)
                    continue
                os.chmod(item.name, 0o700, dir_fd=folder)
                pending.append(item.name if name == "." else f".{next(numbers)}")
                os.rename(item.name, pending[-1], src_dir_fd=folder, dst_dir_fd=top)
            if name != ".":
                os.rmdir(name, dir_fd=top)
