"""``Entries``: how many files and folders a copy holds, looked at while a program may be adding to them.

Nothing limits that on the file system of a copy, where the system's own count is of all files: a rise of it is only a
reason to count.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from reflectrl.envs.auto_explore.tree import FOLDER

PAUSE_FACTOR = 10.0
"""Shortest pause between two counts, as a multiple of the time that the first of them took."""
BLIND_S = 1.0
"""Longest pause: what is removed elsewhere on the file system may hide what is made here."""


class Entries:
    """Watches that the folder ``root`` holds no more than ``most`` files and folders."""

    def __init__(self, root: Path, most: int) -> None:
        self._root = root
        self._most = most
        self._left = most - count_entries(root, most)
        self._before = used_inodes(root)
        self._next, self._due = 0.0, time.monotonic() + BLIND_S

    @property
    def full(self) -> bool:
        """True if the folder held that many when it was first counted."""
        return self._left <= 0

    def too_many(self) -> bool:
        """Return whether the folder holds more now; counts if the file system has gained entries, or after a pause."""
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
    """Files and folders on the file system of ``place``; ``None`` if it does not count them, as Btrfs does not."""
    found = os.statvfs(place)
    return found.f_files - found.f_ffree if found.f_files else None


def count_entries(root: Path, most: int) -> int:
    """Files and folders below ``root``, however deep; counting ends soon after ``most``.

    What is moved meanwhile may be counted twice or not at all, but nothing outside is looked at: the way up ends at
    ``root``.
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
    """The number of entries of a folder, as far as ``most``, and the names of those that are folders."""
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
    """Open a folder, also one that its owner may not read; ``None`` if it is gone."""
    try:
        try:
            return os.open(name, FOLDER, dir_fd=parent)
        except PermissionError:
            handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            try:
                itself = f"/proc/self/fd/{handle}"  # a name might lead elsewhere by now
                os.chmod(itself, 0o700)  # noqa: PTH101
                return os.open(itself, os.O_RDONLY | os.O_DIRECTORY)
            finally:
                os.close(handle)
    except OSError:
        return None
