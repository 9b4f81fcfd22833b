"""``Walk``: a repository and where the search in it stands, as text and as the commands that may come next.

The prompting and executing halves of the paper's copilot (appendix C.2). The right answer is unknown to it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from reflectrl.core import WorkFailed
from reflectrl.envs.auto_explore.sandbox import Entry, Sandbox

UP, WHOLE = "cd ..", "ls"
CUT = " [cut]"
ROOT = PurePosixPath(".")


@dataclass
class Walk:
    """One search in a sandbox.

    A folder of more than ``page`` entries is shown as at most ``page`` alphabetical ranges, and ``ls FIRST..LAST``
    opens one; so every menu has at most ``2 * page + 2`` commands, and ``n`` entries take ``log n / log page``
    commands to narrow down.
    """

    sandbox: Sandbox
    """A view with its own working directory, at the root."""
    page: int
    """Most entries shown at a time, 2 or more."""
    output: int
    """Characters shown of the last command's result."""
    listing: bool
    """True to show the entries of the working directory in the text."""
    keep: Callable[[PurePosixPath], bool]
    """Returns whether the entry at a path exists for this walk."""
    answer: str | None = None
    """The file that ``id`` named, relative to the root."""
    result: str = ""
    """Output of the last command, cut."""

    def __post_init__(self) -> None:
        self._read: set[PurePosixPath] = set()
        self._look()

    @property
    def cwd(self) -> PurePosixPath:
        """The working directory, relative to the root."""
        return self.sandbox.cwd

    @property
    def text(self) -> str:
        """Working directory, what lies there and the last result: the paper's prompt without question and history."""
        folder = "/" if self.cwd == ROOT else f"/{self.cwd}"
        lines = [f"Folder: {folder}"]
        if self.listing:
            lines.append(f"Here: {' '.join(self._names()) or 'nothing'}")
        if self.result:
            lines.append(f"Result: {self.result}")
        return "\n".join(lines)

    @property
    def actions(self) -> tuple[str, ...]:
        """The commands that are legal now: ``id``, ``cd``, ``cd ..``, ``ls`` out of a range, and ``cat`` once a file.

        A large folder has its ranges in place of ``id``, ``cd`` and ``cat``. What ``cat`` takes away stands last, so
        that no other command changes its label in a folder.
        """
        up = (UP,) if self.cwd != ROOT else ()
        whole = (WHOLE,) if self._shown is not self._entries else ()
        if len(self._shown) > self.page:
            return (*(range_command(part) for part in self._ranges()), *up, *whole)
        folders = (command("cd", entry.name) for entry in self._shown if entry.folder)
        files = [entry.name for entry in self._shown if not entry.folder]
        unread = (command("cat", name) for name in files if self.cwd / name not in self._read)
        return (*(command("id", name) for name in files), *folders, *up, *whole, *unread)

    def run(self, action: str) -> None:
        """Play one of ``actions``."""
        if action == WHOLE:
            self._shown, self.result = self._entries, ""
            return
        if len(self._shown) > self.page:
            for part in self._ranges():
                if action == range_command(part):
                    self._shown, self.result = part, ""
                    return
        self._play(action)

    def step_towards(self, file: PurePosixPath) -> str:
        """The first command of a shortest way from here to naming ``file``.

        Raises:
            WorkFailed: the file is not in the copy any more.

        """
        if not file.is_relative_to(self.cwd):
            return UP
        name = file.relative_to(self.cwd).parts[0]
        if name not in {entry.name for entry in self._entries}:
            raise WorkFailed(f"{file} has gone from the copy of the repository; reset the environment for a new copy.")
        if name not in {entry.name for entry in self._shown}:
            return WHOLE
        if len(self._shown) > self.page:
            holds = next(part for part in self._ranges() if name in {entry.name for entry in part})
            return range_command(holds)
        return command("id" if self.cwd / name == file else "cd", name)

    def _play(self, action: str) -> None:
        verb, _, rest = action.partition(" ")
        done = self.sandbox.run(action)
        text = " ".join(done.output.split())
        self.result = text if len(text) <= self.output else text[: self.output].rstrip() + CUT
        self.answer = done.answer
        if verb == "cd" and not done.failed:
            self._look()
        elif verb == "cat":
            self._read.update(self.cwd / entry.name for entry in self._shown if shlex.quote(entry.name) == rest)

    def _look(self) -> None:
        """Read the working directory; the sandbox shows no name that would not fit on a line of a menu."""
        found = self.sandbox.entries()
        self._entries = tuple(entry for entry in found if self.keep(self.cwd / entry.name))
        self._shown = self._entries

    def _names(self) -> list[str]:
        if len(self._shown) > self.page:
            return [range_command(part).removeprefix("ls ") for part in self._ranges()]
        return [shlex.quote(entry.name) + "/" * entry.folder for entry in self._shown]

    def _ranges(self) -> list[tuple[Entry, ...]]:
        """The entries shown, cut into equal runs, as many as fit a page."""
        count = min(self.page, math.ceil(len(self._shown) / self.page))
        bounds = [len(self._shown) * number // count for number in range(count + 1)]
        return [self._shown[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]


def command(verb: str, name: str) -> str:
    """``verb`` on one entry of the working directory, as the sandbox parses it."""
    return f"{verb} {shlex.quote(name)}"


def range_command(part: tuple[Entry, ...]) -> str:
    """The command that narrows a large folder to ``part``."""
    return f"ls {shlex.quote(part[0].name)}..{shlex.quote(part[-1].name)}"
