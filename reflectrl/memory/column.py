"""``Column``: texts of one kind from all past episodes, each different text embedded once, to compare with a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from reflectrl.memory.embedders import Vectors, words

KeyMatch = Literal["embed", "lexical", "hybrid"]
Numbers = npt.NDArray[np.float32]
Indexes = npt.NDArray[np.int64]
DECIMALS = 6
"""Decimals that decide whether similarities are equal; the order of float32 sums changes the digits beyond."""


class Embeds(Protocol):
    """Protocol that embeds texts (``Embedder``) or names of pictures (``VisionTower``)."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``(len(texts), width)`` unit vectors, in order."""
        ...


class Column:
    """Texts of ``N`` episodes, any number in each; empty texts are left out.

    Args:
        rows: the texts of each episode.
        embedder: embeds each different text.
        by: compare by embeddings, by words, or by the larger of both.
        first_word: in a comparison by words, compare only the first words, which are the verbs of actions.

    """

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        embedder: Embeds,
        *,
        by: KeyMatch = "embed",
        first_word: bool = False,
    ) -> None:
        self.embedder = embedder
        """Embeds queries, too."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(t for row in rows for t in row if t))}
        found = [[(place, numbers[text]) for place, text in enumerate(row) if text] for row in rows]
        self.counts: Indexes = np.array([len(row) for row in found], np.int64)
        """(N,) number of texts of each episode."""
        self.held: Numbers = (self.counts > 0).astype(np.float32)
        """(N,) 1 for an episode with texts, else 0."""
        self._starts: Indexes = np.cumsum(self.counts) - self.counts
        self._places: Indexes = np.array([place for row in found for place, _ in row], np.int64)
        self._texts: Indexes = np.array([text for row in found for _, text in row], np.int64)
        self._different = len(numbers)
        self._vectors = embedder.embed(list(numbers)) if by != "lexical" else np.zeros((0, 0), np.float32)
        self._first_word = first_word
        self._holders: dict[str, Indexes] | None = None if by == "embed" else _holders(list(numbers), first_word)

    def similarities(self, text: str, vector: Numbers) -> Numbers:
        """Return the similarities of a query to all texts, episode after episode.

        Args:
            text: the query.
            vector: (width,) embedding of the query.

        """
        if self._holders is None:
            return (self._vectors @ vector)[self._texts]
        shared = self._shared_words(text)
        return (np.maximum(shared, self._vectors @ vector) if len(self._vectors) else shared)[self._texts]

    def best(self, similarities: Numbers) -> Numbers:
        """Return the similarity of the nearest text in each episode: (N,), 0 for an episode without texts."""
        largest, filled = np.zeros(len(self.counts), np.float32), self.counts > 0
        if len(similarities):
            largest[filled] = np.maximum.reduceat(similarities, self._starts[filled])
        return largest

    def nearest(self, similarities: Numbers, episode: int) -> int | None:
        """Return the place of the nearest text in an episode, the first of equal ones; ``None`` without texts."""
        first, count = self._starts[episode], self.counts[episode]
        if not count:
            return None
        return int(self._places[first + np.argmax(np.round(similarities[first : first + count], DECIMALS))])

    def _shared_words(self, text: str) -> Numbers:
        """Return the fraction of the query's words that each text holds; for first words, 1 if both agree."""
        shared = np.zeros(self._different, np.float32)
        asked = dict.fromkeys(words(text)[:1] if self._first_word else words(text))
        for word in asked:
            shared[(self._holders or {}).get(word, [])] += 1 / len(asked)
        return shared


def _holders(texts: Sequence[str], first_word: bool) -> dict[str, Indexes]:
    """Return the indices of the texts that hold each word, or that begin with it."""
    holders: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        for word in set(words(text)[:1] if first_word else words(text)):
            holders.setdefault(word, []).append(number)
    return {word: np.array(numbers, np.int64) for word, numbers in holders.items()}
