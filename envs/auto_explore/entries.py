"""``Entries``: the number of files and folders in a copy, checked while a program may be adding to them.

The file system of a copy has no limit on this number. The system only counts all files of the file system, so a rise of
that count is merely a reason to count again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from reflectrl.envs.auto_explore.tree import FOLDER

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
