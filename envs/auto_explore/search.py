"""``Search``: the tool that finds files by words of the question, and the index that it uses.

Each word narrows the search of the words before it. The search does not know the right answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import combinations, islice
from pathlib import PurePosixPath

from reflectrl.envs.auto_explore.ambiguity import content_words, words_of
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.sandbox import Sandbox

MAX_WORDS = 8
"""Maximum number of a question's words that can be searched for."""
CANDIDATES = 20
"""Number of the best files by BM25 that a search orders by their best lines."""
MAX_FOUND = 5
"""Maximum number of files that a search shows."""
VERB = "search for "
ALL = "all words"
"""Search term that stands for all remaining words."""


@dataclass(frozen=True)
class Line:
    """A line of a file that has words of a question."""

    text: str = ""
    held: frozenset[str] = frozenset()
    """The question's words in it."""
    weight: float = 0.0
    """Sum of the rarities of these words."""


class Index:
    """The words of a repository's files and the lines that contain them, built from one private copy."""

    def __init__(self, copy: Sandbox) -> None:
        self._bm25 = BM25(copy.texts())
        self.holding = lru_cache(maxsize=1024)(self._bm25.holding)
        # not a cached method of this index, which would keep itself and the copy on disk alive
        self._lines = lru_cache(maxsize=16_384)(partial(_lines, copy, self._bm25))

    def words(self, question: str) -> tuple[str, ...]:
        """Return the words of the question that occur in any file: the rarest first, at most ``MAX_WORDS``."""
        telling = content_words(question)
        asked = dict.fromkeys(word for word in words_of(question) if word in telling and self._bm25.files_with(word))
        return tuple(sorted(asked, key=self._bm25.files_with)[:MAX_WORDS])

    def line(self, file: PurePosixPath, words: Collection[str], question: str) -> Line:
        """Return the best line of a file for a question, of those with any of the ``words``; without one, no text."""
        return next((line for line in self._lines(file, question) if not line.held.isdisjoint(words)), Line())


def _lines(copy: Sandbox, bm25: BM25, file: PurePosixPath, question: str) -> tuple[Line, ...]:
    """Return the lines of a file with content words of a question, heaviest first; of those with equal words, one."""
    asked, telling = set(words_of(question)), content_words(question)
    found: dict[frozenset[str], Line] = {}
    for text in copy.text(file).splitlines():
        held = frozenset(asked.intersection(words_of(text)))
        if held not in found and not telling.isdisjoint(held):
            weight = sum(bm25.rarity(word) for word in sorted(held))  # sorted: a sum of floats depends on the order
            found[held] = Line(" ".join(text.split()), held, weight)
    return tuple(sorted(found.values(), key=lambda line: -line.weight))


@dataclass
class Search:
    """The search of one episode."""

    index: Index
    question: str
    keep: Callable[[PurePosixPath], bool]
    """Function that returns whether the file at a path exists in this episode."""
    words: tuple[str, ...] = ()
    """Words searched for, in this order."""

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        return self.index.words(self.question)

    @property
    def left(self) -> tuple[str, ...]:
        """Words that can still be searched for: all of them together, if there are several, and each of them."""
        words = self._left
        return (ALL, *words) if len(words) > 1 else words

    @property
    def _left(self) -> tuple[str, ...]:
        return tuple(word for word in self._asked if word not in self.words)

    def add(self, word: str) -> None:
        """Add one of ``left`` to the search."""
        self.words = (*self.words, *(self._left if word == ALL else (word,)))

    @property
    def found(self) -> tuple[PurePosixPath, ...]:
        """Files that match the words, best first: those with the heaviest lines of the question's words."""
        return self._found(self.words)

    @property
    def text(self) -> str:
        """The words searched for; empty before the first."""
        return " ".join(self.words)

    def line(self, file: PurePosixPath, most: int) -> str:
        """Return the line for which a file was found; one of more than ``most`` characters begins near such a word."""
        text = self.index.line(file, self.words, self.question).text
        starts = [word.start() for word in re.finditer(r"\S+", text) if not {*self.words}.isdisjoint(words_of(word[0]))]
        cut = text.rfind(" ", 0, max(0, starts[0] - 1)) + 1 if len(text) > most and starts else 0
        return text[cut:]

    def missing(self, file: PurePosixPath, most: int) -> tuple[str, ...] | None:
        """Return the fewest further searches that find ``file``; of several, those with the highest rank for it.

        Returns:
            ``None`` if more than ``most`` searches are needed.
        """
        if file in self.found:
            return ()
        ways: list[tuple[tuple[str, ...], tuple[str, ...]]] = [((ALL,), self._left)] if len(self._left) > 1 else []
        for count in range(1, min(most, len(self._left)) + 1):
            ways += ((words, words) for words in combinations(self._left, count))
            found = [(self._found((*self.words, *words)), way) for way, words in ways]
            best = min(((files.index(file), n) for n, (files, _) in enumerate(found) if file in files), default=None)
            if best is not None:
                return found[best[1]][1]
            ways = []
        return None

    def _found(self, words: tuple[str, ...]) -> tuple[PurePosixPath, ...]:
        ranked = filter(self.keep, map(PurePosixPath, self.index.holding(frozenset(words))))
        best = sorted(islice(ranked, CANDIDATES), key=lambda file: -self.index.line(file, words, self.question).weight)
        return tuple(best[:MAX_FOUND])
