"""Searches without learning by the agent's own commands: file by file, by names, and by BM25."""

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
"""Texts of a repository's files by their paths."""
Place = tuple[str, ...]
"""Place of a walker: the ``cd`` and ``ls FIRST..LAST`` commands that lead there from the root."""


@dataclass(frozen=True)
class Search:
    """Result of one episode."""

    success: bool
    steps: int
    files_opened: int


def breadth_first(env: NatLangEnv, task: Task, texts: Texts) -> Search:
    """Play ``task``: read file by file, upper folders first, and name the first file with every word of the question.

    Walking between folders takes steps, as for every player. No other file is ever named.

    Args:
        env: the AutoExplore environment.
        task: one of its tasks.
        texts: the repository's texts; the walker reads a whole file where the environment shows only its beginning.

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

    # the ranges of a large folder are part of it, so they are visited before other folders
    return _search(env, task, visit, lambda command: command.startswith("ls "))


def by_names(env: NatLangEnv, task: Task) -> Search:
    """Play ``task``: visit folders that the question names before others, and name a file there that it names too.

    The walker reads no file, so it fails if the question does not name the file.
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
    """Walk through all folders, preferring those of ``comes_first``, and play the commands of ``visit`` in each."""
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
    """Yield the commands of a walk; the caller plays each before it requests the next."""
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
    """Return whether all words of the name in a command are among ``words``."""
    name = content_words(PurePosixPath(shlex.split(command)[1]).stem)
    return bool(name) and name <= words


def by_rank(env: NatLangEnv, task: Task, index: BM25) -> Search:
    """Play ``task``: walk straight to the file that ``index`` ranks first for the question, and name it.

    The walk is short, but the index was built from all files.
    """
    best = index.ranking(content_words(str(task.options["question"])))[0]
    env.reset(seed=0, options={"task": replace(task, options={**task.options, "file": best})})
    ended = False
    while not ended and (command := env.expert()) is not None:
        _, _, terminated, truncated, info = env.step(command)
        ended = terminated or truncated
    return Search(info["success"] and best == task.options["file"], env.steps, len(index))


def _towards(there: Place, here: Place) -> tuple[str, Place]:
    """Return the next command on the way from ``here`` to ``there``, and the place that it leads to."""
    if there[: len(here)] == here:
        return there[len(here)], there[: len(here) + 1]
    folder = _whole(here)
    if folder != here and there[: len(folder)] == folder:
        return "ls", folder
    return "cd ..", _whole(folder[:-1])


def _whole(place: Place) -> Place:
    """Return the folder of a place, without the ranges within it."""
    while place and place[-1].startswith("ls "):
        place = place[:-1]
    return place


def _folders(place: Place) -> list[str]:
    return [shlex.split(command)[1] for command in place if command.startswith("cd ")]
