"""``BM25``: ranks the files of a repository by the words that they hold."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from reflectrl.envs.auto_explore.ambiguity import words_of

K1 = 1.2
"""Saturation: how soon further occurrences of a word in a file count less."""
B = 0.75
"""Normalisation by length: how much long files count less, from 0 to 1."""


class BM25:
    """Okapi BM25 over the words of each file and its path, from their ``texts`` by path."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._counts: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._lengths: dict[str, int] = {}
        for file, text in texts.items():
            counts = Counter(words_of(f"{file}\n{text}"))
            self._lengths[file] = counts.total()
            for word, count in counts.items():
                self._counts[word][file] = count
        self._mean = sum(self._lengths.values()) / max(1, len(self._lengths))

    def __len__(self) -> int:
        return len(self._lengths)

    def files_with(self, word: str) -> int:
        """Return the number of files that hold ``word``, which must be in lower case."""
        return len(self._counts.get(word, ()))

    def rarity(self, word: str) -> float:
        """Return the weight of a word, which is larger for a word in fewer files."""
        having = self.files_with(word)
        return math.log(1 + (len(self) - having + 0.5) / (having + 0.5))

    def holding(self, words: Collection[str]) -> list[str]:
        """Return the files that hold any of the words, best first; equal ones by path."""
        scores: defaultdict[str, float] = defaultdict(float)
        for word in sorted(set(words)):  # in a fixed order, because sums of floats depend on it
            rarity = self.rarity(word)
            for file, count in self._counts.get(word, {}).items():
                length = K1 * (1 - B + B * self._lengths[file] / self._mean)
                scores[file] += rarity * count / (count + length)
        return sorted(scores, key=lambda file: (-scores[file], file))

    def ranking(self, words: Collection[str]) -> list[str]:
        """Return every file, best first; those that hold none of the words come last, by path."""
        best = self.holding(words)
        return [*best, *sorted(self._lengths.keys() - set(best))]
