"""``Search``: the tool that finds files by words of the question, and the index that it asks.

Each word narrows the search that began with the words before it. The right answer is unknown to it.
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
"""Words of a question that can be searched for."""
MAX_FOUND = 5
"""Files that a search shows."""
VERB = "search for "
ALL = "all words"
"""Searched for in place of a word: all that are left."""


class Index:
    """The words of a repository's files, and the lines in which they stand; built of one private copy."""

    def __init__(self, copy: Sandbox) -> None:
        self._bm25 = BM25(copy.texts())
        self.holding = lru_cache(maxsize=1024)(self._bm25.holding)
        # of no method of this index: it would keep itself, and the copy on disk, from being removed
        self.line = lru_cache(maxsize=65_536)(partial(_line, copy, self._bm25))

    def words(self, question: str) -> tuple[str, ...]:
        """Words of the question that any file holds: the rarest first, ``MAX_WORDS`` at most."""
        telling = content_words(question)
        asked = dict.fromkeys(word for word in words_of(question) if word in telling and self._bm25.files_with(word))
        return tuple(sorted(asked, key=self._bm25.files_with)[:MAX_WORDS])


def _line(copy: Sandbox, bm25: BM25, file: PurePosixPath, words: frozenset[str], most: int) -> str:
    """The first of the lines of a file that hold most of the words, by their rarity.

    One of more than ``most`` characters begins with the word before the first of the words.
    """
    lines = (" ".join(line.split()) for line in copy.text(file).splitlines())
    rarity = {word: bm25.rarity(word) for word in sorted(words)}

    def score(line: str) -> float:
        held = words.intersection(words_of(line))
        return sum(rarity[word] for word in sorted(held))

    best = max((line for line in lines if line), key=score, default="")
    held = [word.start() for word in re.finditer(r"\S+", best) if words.intersection(words_of(word[0]))]
    if len(best) <= most or not held:
        return best
    return best[best.rfind(" ", 0, max(0, held[0] - 1)) + 1 :]


@dataclass
class Search:
    """The search of one episode."""

    index: Index
    question: str
    keep: Callable[[PurePosixPath], bool]
    """Returns whether the file at a path exists in this episode."""
    words: tuple[str, ...] = ()
    """Words searched for, in this order."""

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        return self.index.words(self.question)

    @property
    def left(self) -> tuple[str, ...]:
        """What can be searched for yet: all words that are left, where there are several, and each of them."""
        words = self._left
        return (ALL, *words) if len(words) > 1 else words

    @property
    def _left(self) -> tuple[str, ...]:
        return tuple(word for word in self._asked if word not in self.words)

    def add(self, word: str) -> None:
        """Search for one of ``left`` too."""
        self.words = (*self.words, *(self._left if word == ALL else (word,)))

    @property
    def found(self) -> tuple[PurePosixPath, ...]:
        """The files that hold the words best, the best first."""
        return self._found(self.words)

    @property
    def text(self) -> str:
        """The words searched for; empty before the first."""
        return " ".join(self.words)

    def line(self, file: PurePosixPath, most: int) -> str:
        """The line of a found file that holds most of the words; a long one from where ``most`` characters tell."""
        return self.index.line(file, frozenset(self.words), most)

    def missing(self, file: PurePosixPath, most: int) -> tuple[str, ...] | None:
        """The fewest further searches by which ``file`` is found, and of those after which it stands highest the first.

        Returns:
            ``None`` if that takes more than ``most``.

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
