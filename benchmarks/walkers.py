"""Searches without learning, by the agent's own commands: file by file, by names, and by words' rarity."""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from reflectrl.core import NatLangEnv, Task
from reflectrl.envs.auto_explore.ambiguity import content_words
from reflectrl.envs.auto_explore.bm25 import BM25

Texts = Mapping[str, str]
"""Text of each file of a repository, by its path."""
Place = tuple[str, ...]
"""Place of a walker: the commands that lead there from the root, ``cd`` and ``ls FIRST..LAST``."""


@dataclass(frozen=True)
class Search:
    """Result of one episode."""

    success: bool
    steps: int
    files_opened: int


def breadth_first(env: NatLangEnv, task: Task, texts: Texts) -> Search:
    """Play ``task``: read file by file, upper folders first, and name the first that has every word of the question.

    Walking between folders takes steps, as it does for every player. Nothing is named that was not recognised.

    Args:
        env: an AutoExplore.
        task: one of its tasks.
        texts: the repository; the walker reads the whole text of a file, where the environment shows a beginning.

    """
    words = content_words(str(task.options["question"]))

    def visit(here: Place, menu: Sequence[str]) -> Iterator[str]:
        for command in menu:
            verb, _, name = command.partition(" ")
            if verb == "cat":
                yield command
                file = "/".join([*_folders(here), *shlex.split(name)])
                if words <= content_words(f"{file}\n{texts.get(file, '')}"):
                    yield f"id {name}"

    # the ranges of a large folder are parts of it, so they come before other folders
    return _search(env, task, visit, lambda command: command.startswith("ls "))


def by_names(env: NatLangEnv, task: Task) -> Search:
    """Play ``task``: enter folders that the question names, before others, and name a file in them that it names.

    Nothing is read, so a question that does not name its file leaves this walker at a loss.
    """
    words = content_words(str(task.options["question"]))

    def visit(here: Place, menu: Sequence[str]) -> Iterator[str]:
        if not _folders(here) or words & content_words(_folders(here)[-1]):
            yield from (command for command in menu if command.startswith("id ") and _in(words, command))

    return _search(env, task, visit, lambda command: command.startswith("ls ") or _in(words, command))


def _search(
    env: NatLangEnv,
    task: Task,
    visit: Callable[[Place, Sequence[str]], Iterator[str]],
    comes_first: Callable[[str], bool],
) -> Search:
    """Walk through all folders: play ``visit`` in each, and enter those whose command ``comes_first`` before others."""
    _, info = env.reset(seed=0, options={"task": task})
    opened = 0
    for command in _commands(env, visit, comes_first):
        _, _, terminated, truncated, info = env.step(command)
        opened += command.startswith("cat ")
        if terminated or truncated:
            break
    return Search(info["success"], env.steps, opened)


def _commands(
    env: NatLangEnv, visit: Callable[[Place, Sequence[str]], Iterator[str]], comes_first: Callable[[str], bool]
) -> Iterator[str]:
    """Yield the commands of a walk; each has been played when the next is asked for."""
    here: Place = ()
    waiting: deque[Place] = deque([here])
    while waiting:
        there = waiting.popleft()
        while here != there:
            command, here = _towards(there, here)
            yield command
        menu = env.observation.actions
        yield from visit(here, menu)
        below = [(*here, command) for command in menu if command.startswith(("cd ", "ls ")) and command != "cd .."]
        first = [place for place in below if comes_first(place[-1])]
        waiting.extendleft(reversed(first))
        waiting.extend(place for place in below if place not in first)


def _in(words: frozenset[str], command: str) -> bool:
    """Return whether all words of the name that a command is about are among ``words``."""
    name = content_words(PurePosixPath(shlex.split(command)[1]).stem)
    return bool(name) and name <= words


def by_rank(env: NatLangEnv, task: Task, index: BM25) -> Search:
    """Play ``task``: walk straight to the file that ``index`` ranks first for the question, and name it.

    The walk is short, but every file was read for the index.
    """
    best = index.ranking(content_words(str(task.options["question"])))[0]
    env.reset(seed=0, options={"task": replace(task, options={**task.options, "file": best})})
    ended = False
    while not ended and (command := env.expert()) is not None:
        _, _, terminated, truncated, info = env.step(command)
        ended = terminated or truncated
    return Search(info["success"] and best == task.options["file"], env.steps, len(index))


def _towards(there: Place, here: Place) -> tuple[str, Place]:
    """The next command of the way from ``here``, and where it leads."""
    if there[: len(here)] == here:
        return there[len(here)], there[: len(here) + 1]
    folder = _whole(here)
    if folder != here and there[: len(folder)] == folder:
        return "ls", folder
    return "cd ..", _whole(folder[:-1])


def _whole(place: Place) -> Place:
    """The folder of a place, out of its ranges."""
    while place and place[-1].startswith("ls "):
        place = place[:-1]
    return place


def _folders(place: Place) -> list[str]:
    return [shlex.split(command)[1] for command in place if command.startswith("cd ")]
