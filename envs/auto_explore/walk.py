"""``Walk``: a repository and the state of the search in it, as text and as the commands that may come next.

It implements the prompting and the execution of the paper's copilot (appendix C.2), and does not know the right answer.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import PurePosixPath

from reflectrl.core import WorkFailed
from reflectrl.envs.auto_explore.sandbox import Entry, Sandbox
from reflectrl.envs.auto_explore.search import MAX_FOUND, MAX_WORDS, VERB, Search

UP, WHOLE = "cd ..", "ls"
CUT = " [cut]"
HEAD_LINES = 3
"""Number of a file's lines that ``head`` shows."""
ROOT = PurePosixPath(".")


@dataclass
class Walk:
    """One search in a sandbox.

    A folder of more than ``page`` entries is shown as at most ``page`` alphabetical ranges, and ``ls FIRST..LAST``
    opens one; so every menu has at most ``2 * page + 2`` commands, and ``n`` entries take ``log n / log page``
    commands to narrow down.
    """

    sandbox: Sandbox
    """A view with its own working directory, at first the root."""
    page: int
    """Maximum number of entries shown at a time, 2 or more."""
    output: int
    """Number of characters shown of the last command's result."""
    listing: bool
    """True to show the entries of the working directory in the text."""
    keep: Callable[[PurePosixPath], bool]
    """Function that returns whether the entry at a path exists for this walk."""
    search: Search | None = None
    """The tool that finds files by words, if there is one."""
    head: bool = False
    """True if a command shows a file's first lines only."""
    answer: str | None = None
    """The file that ``id`` named, relative to the root."""
    result: str = ""
    """Output of the last command, shortened."""

    def __post_init__(self) -> None:
        self._read: set[PurePosixPath] = set()
        self._seen: set[PurePosixPath] = set()  # files of which only the first lines were seen
        self._last_read: PurePosixPath | None = None
        # not a cached method of this walk, which would keep itself and the copy on disk alive
        self._listing = lru_cache(maxsize=None)(partial(_entries, self.sandbox, self.keep))
        self._look()

    @property
    def cwd(self) -> PurePosixPath:
        """The working directory, relative to the root."""
        return self.sandbox.cwd

    @property
    def text(self) -> str:
        """Return working directory, entries and last result: the paper's prompt without question and history."""
        folder = "/" if self.cwd == ROOT else f"/{self.cwd}"
        lines = [f"Folder: {folder}"]
        if self.listing:
            lines.append(f"Here: {' '.join(self._names()) or 'nothing'}")
        if self.search is not None and self.search.words:
            lines.append(f"Found by {self.search.text}: {'' if self.found else 'nothing'}".rstrip())
            lines += (f"{absolute(file)}: {self.line(file)}".removesuffix(": ") for file in self.found)
        if self.result:
            lines.append(f"Result: {self.result}")
        return "\n".join(lines)

    @property
    def actions(self) -> tuple[str, ...]:
        """Commands that are legal now: ``id``, ``cd``, ``cd ..``, ``ls`` out of a range, and ``cat`` once a file.

        A large folder has its ranges instead of ``id``, ``cd`` and ``cat``. Commands that disappear after use (``cat``)
        come last, so that no other command changes its label in a folder. With a search, ``id`` of the found files
        comes first, then the remaining words, so that their labels depend on no folder; ``open`` reads a found file,
        once each.
        """
        names, words, reads = self._search_actions()
        here, cats = self._folder_actions()
        return (*names, *words, *here, *reads, *cats)

    @property
    def found(self) -> tuple[PurePosixPath, ...]:
        """Files that the search found, best first."""
        return self.search.found if self.search is not None else ()

    def line(self, file: PurePosixPath) -> str:
        """Return the line of a file that the search result shows."""
        return "" if self.search is None else self._cut(self.search.line(file, self.output))

    def read(self, file: PurePosixPath) -> bool:
        """Return whether the last command read ``file`` or its first lines."""
        return file == self._last_read

    def _search_actions(self) -> tuple[list[str], list[str], list[str]]:
        """Return the commands that name a found file, that continue the search, and that read a found file."""
        if self.search is None:
            return [], [], []
        found = self.found
        names = [command("id", absolute(file)) for file in found]
        heads = [command("head", absolute(file)) for file in found if self._is_new(file)]
        reads = [command("open", absolute(file)) for file in found if file not in self._read]
        return names, [VERB + word for word in self.search.left], [*heads, *reads]

    def _is_new(self, file: PurePosixPath) -> bool:
        return self.head and file not in self._read | self._seen

    def _folder_actions(self) -> tuple[list[str], list[str]]:
        """Return the commands of the working directory; those that read a file are separate."""
        up = (UP,) if self.cwd != ROOT else ()
        whole = (WHOLE,) if self._shown is not self._entries else ()
        if len(self._shown) > self.page:
            return [*(range_command(part) for part in self._ranges(self._shown)), *up, *whole], []
        folders = (command("cd", entry.name) for entry in self._shown if entry.folder)
        found = self.found  # commands for these exist already
        files = [entry.name for entry in self._shown if not entry.folder and self.cwd / entry.name not in found]
        heads = [command("head", name) for name in files if self._is_new(self.cwd / name)]
        unread = [command("cat", name) for name in files if self.cwd / name not in self._read]
        return [*(command("id", name) for name in files), *folders, *up, *whole], [*heads, *unread]

    def run(self, action: str) -> None:
        """Execute one of ``actions``."""
        self._last_read = None
        if action == WHOLE:
            self._shown, self.result = self._entries, ""
            return
        if self.search is not None and action.startswith(VERB):
            self.search.add(action.removeprefix(VERB))
            self.result = ""
            return
        if len(self._shown) > self.page:
            for part in self._ranges(self._shown):
                if action == range_command(part):
                    self._shown, self.result = part, ""
                    return
        self._play(action)

    def step_towards(self, file: PurePosixPath) -> str:
        """Return the first command of a shortest path to naming ``file``, by search before a walk as long.

        Raises:
            WorkFailed: the file is not in the copy any more.
        """
        return self._walk_step(file) if self.search is None else self._way(file, self.search)[0]

    def steps_to(self, file: PurePosixPath) -> int:
        """Return the number of commands on a shortest path to naming ``file``, that one included.

        Raises:
            WorkFailed: the file is not in the copy any more.
        """
        return self._walk_steps(file) if self.search is None else self._way(file, self.search)[1]

    def _way(self, file: PurePosixPath, search: Search) -> tuple[str, int]:
        """Return the first command of a shortest path to naming ``file``, and the number of commands."""
        if file in search.found:
            return command("id", absolute(file)), 1
        walk = self._walk_steps(file)
        words = search.missing(file, walk - 1)
        if words:
            return VERB + words[0], len(words) + 1
        return self._walk_step(file), walk

    def _walk_step(self, file: PurePosixPath) -> str:
        if not file.is_relative_to(self.cwd):
            return UP
        name = file.relative_to(self.cwd).parts[0]
        if name not in {entry.name for entry in self._entries}:
            raise WorkFailed(f"{file} has gone from the copy of the repository; reset the environment for a new copy.")
        if name not in {entry.name for entry in self._shown}:
            return WHOLE
        if len(self._shown) > self.page:
            return range_command(self._holding(name, self._shown))
        return command("id" if self.cwd / name == file else "cd", name)

    def _walk_steps(self, file: PurePosixPath) -> int:
        steps, folder, shown = 0, self.cwd, self._shown
        while not file.is_relative_to(folder):
            steps, folder, shown = steps + 1, folder.parent, ()
        for name in file.relative_to(folder).parts:
            entries = shown or self._listing(folder)
            if name not in {entry.name for entry in entries}:
                steps, entries = steps + 1, self._listing(folder)
            while len(entries) > self.page and name in {entry.name for entry in entries}:
                steps, entries = steps + 1, self._holding(name, entries)
            steps, folder, shown = steps + 1, folder / name, ()
        return steps

    def _holding(self, name: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        return next(part for part in self._ranges(entries) if name in {entry.name for entry in part})

    def _play(self, action: str) -> None:
        verb, _, rest = action.partition(" ")
        done = self.sandbox.run({"open": f"cat {rest}", "head": f"head -n {HEAD_LINES} {rest}"}.get(verb, action))
        self.result = self._cut(" ".join(done.output.split()))
        self.answer = done.answer
        if verb == "cd" and not done.failed:
            self._look()
        elif verb in ("cat", "open", "head"):
            file = self.cwd / shlex.split(rest)[0]
            self._last_read = PurePosixPath(*file.parts[file.is_absolute() :])
            (self._seen if verb == "head" else self._read).add(self._last_read)

    def _cut(self, text: str) -> str:
        return text if len(text) <= self.output else text[: self.output].rstrip() + CUT

    def _look(self) -> None:
        """Read the working directory; the sandbox shows only names that fit on a line of a menu."""
        self._entries = _kept(self.sandbox, self.keep)
        self._shown = self._entries

    def _names(self) -> list[str]:
        if len(self._shown) > self.page:
            return [range_command(part).removeprefix("ls ") for part in self._ranges(self._shown)]
        return [shlex.quote(entry.name) + "/" * entry.folder for entry in self._shown]

    def _ranges(self, entries: Sequence[Entry]) -> list[tuple[Entry, ...]]:
        """Split the entries into equal runs, as many as fit a page."""
        count = min(self.page, math.ceil(len(entries) / self.page))
        bounds = [len(entries) * number // count for number in range(count + 1)]
        return [tuple(entries[start:end]) for start, end in zip(bounds, bounds[1:], strict=False)]


def _entries(sandbox: Sandbox, keep: Callable[[PurePosixPath], bool], folder: PurePosixPath) -> tuple[Entry, ...]:
    """Return the entries of any folder that exist for a walk."""
    view = sandbox.view()
    view.run(command("cd", absolute(folder)))
    return _kept(view, keep)


def _kept(sandbox: Sandbox, keep: Callable[[PurePosixPath], bool]) -> tuple[Entry, ...]:
    return tuple(entry for entry in sandbox.entries() if keep(sandbox.cwd / entry.name))


def longest_menu(page: int, *, search: bool, head: bool) -> int:
    """Return the maximum number of commands of a menu."""
    return 2 * page + 2 + head * page + search * (1 + MAX_WORDS + (2 + head) * MAX_FOUND)


def command(verb: str, name: str) -> str:
    """Return the command ``verb`` on one entry of the working directory, in the syntax of the sandbox."""
    return f"{verb} {shlex.quote(name)}"


def absolute(path: PurePosixPath) -> str:
    """Return a path from the root, which does not depend on the working directory."""
    return f"/{'' if path == ROOT else path}"


def range_command(part: tuple[Entry, ...]) -> str:
    """Return the command that narrows a large folder to ``part``."""
    return f"ls {shlex.quote(part[0].name)}..{shlex.quote(part[-1].name)}"
