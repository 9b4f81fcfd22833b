"""``FollowedRuns``: run folders that are read again when their files change, each for itself."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from reflectrl.core import InvalidInput
from reflectrl.core.run_files import CALLS, POLICY, RECIPE, REPORT, run_folders
from reflectrl.core.text import first_line
from reflectrl.report.runs import RunData, read_run

_INSIDE = ("sft", "data", CALLS)
"""Folders whose files grow; for other folders, the folder's own modification time is enough."""
_BESIDE = (POLICY, "trajectories")
State = tuple[tuple[str, int, int], ...]
"""Path, size and time of the last change of the files of a run."""


class FollowedRuns:
    """Runs as they grow, begin and vanish; only those that changed are read.

    Args:
        given: run folders, and folders that hold some, also those that begin later.

    Raises:
        InvalidInput: no folder is there.

    """

    def __init__(self, given: Sequence[Path]) -> None:
        if absent := [str(path) for path in given if not path.is_dir()]:
            raise InvalidInput(
                f"no folder is at {', '.join(absent)}; expected run folders that 'reflectrl run' has made, or a folder "
                "that holds some, such as runs."
            )
        self._given = given
        self._read: dict[Path, tuple[str, State, RunData | str]] = {}

    @property
    def runs(self) -> list[RunData]:
        """The runs that can be read, by name."""
        return [found for _, _, found in self._read.values() if isinstance(found, RunData)]

    @property
    def unread(self) -> list[tuple[str, str]]:
        """Names of the others, and the reasons."""
        return [(name, found) for name, _, found in self._read.values() if isinstance(found, str)]

    def look(self) -> bool:
        """Read what has changed; return whether anything has."""
        before, found = self._read, {}
        folders = sorted({path.resolve() for path in self._folders()})
        times = Counter(folder.name for folder in folders)
        for folder in folders:
            name = folder.name if times[folder.name] == 1 else str(folder)
            state = _state(folder)  # before it is read, so that what is written meanwhile is read next time
            known = before.get(folder)
            found[folder] = known if known and known[:2] == (name, state) else (name, state, _read(folder, name))
        self._read = found
        return [known[:2] for known in found.values()] != [known[:2] for known in before.values()]

    @property
    def written(self) -> dict[str, float]:
        """By the names of the runs, when one of their files was written last, in seconds since 1970."""
        return {name: max((at for _, _, at in state), default=0) / 1e9 for name, state, _ in self._read.values()}

    def _folders(self) -> Iterator[Path]:
        for path in self._given:
            yield from [path] if (path / RECIPE).is_file() else run_folders(path)


def _read(folder: Path, name: str) -> RunData | str:
    try:
        return read_run(folder, name)
    except (InvalidInput, OSError) as error:  # it may vanish while it is read
        return first_line(error, 300)


def _state(run: Path) -> State:
    """Return what changes when the report of a run would; empty for a run that has vanished."""
    try:
        return tuple(sorted(_entries(run)))
    except OSError:
        return ()


def _entries(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name[0] == "." or entry.name == REPORT:
                continue
            if entry.is_dir() and (entry.name in _INSIDE or folder.name == CALLS):
                yield from _entries(Path(entry.path))
            elif entry.is_file() or entry.name in _BESIDE:
                now = entry.stat()
                yield entry.path, now.st_size, now.st_mtime_ns
