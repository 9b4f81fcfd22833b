"""``EpisodeStore``: the past episodes of a memory, in an append-only file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import get_args

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.errors import need_one_of
from reflectrl.core.files import read_bytes, read_text, write_text
from reflectrl.core.jsonl import drop_unfinished_line
from reflectrl.rollout.record import Header, append_records, read_records
from reflectrl.seats.experience import Best, Experience, Keep, experience_of, is_kept

FORMAT = "reflectrl-experiences"


class EpisodeStore:
    """Past episodes, the best one of each task.

    A success is better than a failure, then a higher return, then fewer steps. The file is append-only, with one line
    an episode: an episode that is no better than that of its task is not written, and a better one replaces it on
    reading.
    """

    def __init__(self, path: Path, header: Header, *, keep: Keep = "success") -> None:
        """Open the store in ``path``, or begin a new one with ``header``.

        Args:
            path: file of the store.
            header: environment and prompts of the episodes to add.
            keep: which episodes to take: those that succeeded (``success``), or also those that failed with a return
                above 0 (``rewarded``).

        Raises:
            InvalidInput: the file is not a store, is damaged before its last line, or belongs to another environment;
                or ``keep`` is none of these.

        """
        need_one_of("keep", keep, get_args(Keep))
        self.path = path
        self.dropped = _drop_damaged_end(path)
        """Number of last lines removed because a killed process or machine left them half written: 0 or 1."""
        self._header = header
        self._keep = keep
        self._read()

    def _read(self) -> None:
        self._kept = Best()
        if self.path.exists() and self.path.stat().st_size:
            found, records = read_records(self.path, FORMAT, Experience)
            if found.env != self._header.env:
                raise InvalidInput(
                    f"{self.path} holds episodes of {found.env!r}, but {self._header.env!r} was given; expected one "
                    "environment a store: choose another file."
                )
            for experience in records:
                self._kept.offer(experience)

    def __len__(self) -> int:
        """Return the number of tasks with an episode."""
        return len(self._kept.of_task)

    def add(self, trajectory: Trajectory) -> bool:
        """Add an episode; it is on the disk when this returns.

        Returns:
            False for an episode that is not kept: it failed, has no step with an effect, or is no better than that of
            its task.

        """
        if not is_kept(trajectory, self._keep) or not trajectory.turns:
            return False
        experience = experience_of(trajectory)
        if not self._kept.offer(experience):
            return False
        append_records(self.path, FORMAT, self._header, [experience])
        return True

    @property
    def text(self) -> str:
        """Present text of the file."""
        return read_text(self.path, "a file of past episodes") if self.path.exists() else ""

    def restore(self, text: str) -> None:
        """Restore the file to an earlier ``text``; raises as opening the store does."""
        write_text(self.path, text)
        self._read()

    def snapshot(self) -> tuple[Experience, ...]:
        """Return the episodes as they are now, oldest first; what is added later does not change it."""
        return tuple(self._kept.of_task.values())


def _drop_damaged_end(path: Path) -> int:
    """Remove a last line without its newline, or one that is not JSON after one that is; return their number."""
    if not path.exists():
        return 0
    before = path.stat().st_size
    drop_unfinished_line(path)
    *earlier, last = read_bytes(path, "a file of past episodes").splitlines(keepends=True) or [b""]
    if earlier and not _is_json(last) and _is_json(earlier[-1]):
        os.truncate(path, sum(map(len, earlier)))
    return int(path.stat().st_size < before)


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
