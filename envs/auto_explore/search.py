"""``Search``: the tool that finds files by words of the question, and the index that it uses.

Each word narrows the search of the words before it. The search does not know the right answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import combinations, islice
from pathlib import PurePosixPath

from reflectrl.envs.auto_explore.ambiguity import content_words, words_of
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.sandbox import Sandbox

MAX_WORDS = 8
"""Maximum number of a question's words that can be searched for."""
MAX_FOUND = 5
"""Maximum number of files that a search shows."""
VERB = "search for "
ALL = "all words"
"""Search term that stands for all remaining words."""


@dataclass(frozen=True)
class Line:
    """A line of a found file."""

    text: str
    percent: int
    """Share of the question's different words that the whole line has, rounded down to a multiple of ten."""


class Index:
    """The words of a repository's files and the lines that contain them, built from one private copy."""

    def __init__(self, copy: Sandbox) -> None:
        self._bm25 = BM25(copy.texts())
        self.holding = lru_cache(maxsize=1024)(self._bm25.holding)
        # not a cached method of this index, which would keep itself and the copy on disk alive
        self.line = lru_cache(maxsize=65_536)(partial(_line, copy, self._bm25))

    def words(self, question: str) -> tuple[str, ...]:
        """Return the words of the question that occur in any file: the rarest first, at most ``MAX_WORDS``."""
        telling = content_words(question)
        asked = dict.fromkeys(word for word in words_of(question) if word in telling and self._bm25.files_with(word))
        return tuple(sorted(asked, key=self._bm25.files_with)[:MAX_WORDS])


def _line(
    copy: Sandbox, bm25: BM25, file: PurePosixPath, words: frozenset[str], asked: frozenset[str], most: int
) -> Line:
    """Return the line of a file that has most of the ``asked`` words, weighted by rarity; the first of equal ones.

    Lines without any of the ``words`` searched for do not count. A line of more than ``most`` characters begins with
    the word before the first of these.
    """
    rarity = {word: bm25.rarity(word) for word in sorted(asked)}

    def score(line: str) -> float:
        held = asked.intersection(words_of(line))
        return sum(rarity[word] for word in sorted(held)) if words & held else 0

    best = max((" ".join(line.split()) for line in copy.text(file).splitlines()), key=score, default="")
    if not score(best):
        return Line("", 0)
    percent = 10 * (10 * len(asked.intersection(words_of(best))) // len(asked))
    starts = [word.start() for word in re.finditer(r"\S+", best) if words.intersection(words_of(word[0]))]
    cut = best.rfind(" ", 0, max(0, starts[0] - 1)) + 1 if len(best) > most and starts else 0
    return Line(best[cut:], percent)


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

    @cached_property
    def _all_words(self) -> frozenset[str]:
        return frozenset(words_of(self.question))

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
        """Files that match the words best, best first."""
        return self._found(self.words)

    @property
    def text(self) -> str:
        """The words searched for; empty before the first."""
        return " ".join(self.words)

    def line(self, file: PurePosixPath, most: int) -> Line:
        """Return the line of a found file that has most of the question's words; see ``_line`` for long ones."""
        return self.index.line(file, frozenset(self.words), self._all_words, most)

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
        ranked = map(PurePosixPath, self.index.holding(frozenset(words)))
        return tuple(islice(filter(self.keep, ranked), MAX_FOUND))
