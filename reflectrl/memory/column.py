"""``Column``: one kind of texts of all past episodes, each different text embedded once, compared with a query's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from reflectrl.memory.embedders import Vectors, words

KeyMatch = Literal["embed", "lexical", "hybrid"]
Numbers = npt.NDArray[np.float32]
Indexes = npt.NDArray[np.int64]
DECIMALS = 6
"""Similarities that agree in so many are equal: float32 sums differ beyond by the order in which they are made."""
FEW = 4
"""Numbers are picked out of an array where it holds so many times as many; else reading all of it costs less."""


class Embeds(Protocol):
    """Gives vectors to texts, as an ``Embedder`` does, or to names of pictures, as a ``VisionTower`` does."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``(len(texts), width)`` unit vectors, in order."""
        ...


class Column:
    """Texts of ``N`` episodes, any number of each; empty texts are absent.

    Args:
        rows: the texts of each episode.
        embedder: embeds the different ones among them.
        by: compare by embeddings, by words, or by the larger of both.
        first_word: compare only the first words where words are compared, which are the verbs of actions.

    """

    def __init__(
        self,
        rows: Sequence[Sequence[str]],
        embedder: Embeds,
        *,
        by: KeyMatch = "embed",
        first_word: bool = False,
    ) -> None:
        numbers = {text: number for number, text in enumerate(dict.fromkeys(t for row in rows for t in row if t))}
        found = [[(place, numbers[text]) for place, text in enumerate(row) if text] for row in rows]
        self.counts: Indexes = np.array([len(row) for row in found], np.int64)
        """(N,) texts of each episode."""
        self._starts: Indexes = np.cumsum(self.counts) - self.counts
        self._places: Indexes = np.array([place for row in found for place, _ in row], np.int64)
        self._texts: Indexes = np.array([text for row in found for _, text in row], np.int64)
        self._different = len(numbers)
        self._vectors = embedder.embed(list(numbers)) if by != "lexical" else np.zeros((0, 0), np.float32)
        self._first_word = first_word
        self._holders: dict[str, Indexes] | None = None if by == "embed" else _holders(list(numbers), first_word)

    def best(self, text: str, vector: Numbers, among: Indexes | None = None) -> Numbers:
        """Return the similarity of the text that is nearest in each episode: ``(n,)``, 0 where there is none.

        Args:
            text: the query.
            vector: (width,) its embedding.
            among: (n,) the episodes to look at; absent: all.

        """
        counts = self.counts if among is None else self.counts[among]
        texts = self._texts if among is None else self._texts[self._positions(among, counts)]
        best = np.zeros(len(counts), np.float32)
        if len(texts):
            starts = np.cumsum(counts) - counts
            best[counts > 0] = np.maximum.reduceat(self._similarities(text, vector, texts), starts[counts > 0])
        return best

    def nearest(self, text: str, vector: Numbers, episode: int) -> int | None:
        """Return the place of the nearest text in an episode, the earliest of equal ones; ``None`` without any text."""
        here = slice(self._starts[episode], self._starts[episode] + self.counts[episode])
        texts = self._texts[here]
        if not len(texts):
            return None
        return int(self._places[here][np.argmax(np.round(self._similarities(text, vector, texts), DECIMALS))])

    def _positions(self, among: Indexes, counts: Indexes) -> Indexes:
        """Return where in ``_texts`` the texts of these episodes stand."""
        offsets = self._starts[among] - (np.cumsum(counts) - counts)
        return np.repeat(offsets, counts) + np.arange(counts.sum())

    def _similarities(self, text: str, vector: Numbers, texts: Indexes) -> Numbers:
        """Return the similarities of the texts with these numbers, equal in ``DECIMALS`` for equal texts."""
        values = np.full(len(texts), -np.inf, np.float32)
        if len(self._vectors):
            values = self._products(vector, texts)
        if self._holders is not None:
            values = np.maximum(values, self._shared_words(text)[texts])
        return values

    def _products(self, vector: Numbers, texts: Indexes) -> Numbers:
        """Return the products of the embeddings of the texts with these numbers and ``vector``."""
        used = np.flatnonzero(vector)  # by hashing, a few of all
        sparse = FEW * len(used) < len(vector)
        if FEW * len(texts) * len(vector) < len(self._vectors) * len(used if sparse else vector):
            return self._vectors[texts] @ vector
        return (vector[used] @ self._by_number[used] if sparse else self._vectors @ vector)[texts]

    @cached_property
    def _by_number(self) -> Numbers:
        """(width, different texts) embeddings, so that those of a few numbers are read without the others."""
        return np.ascontiguousarray(self._vectors.T)

    def _shared_words(self, text: str) -> Numbers:
        """Return the fraction of the query's words (or 1 for its first word) that each different text holds."""
        shared = np.zeros(self._different, np.float32)
        asked = dict.fromkeys(words(text)[:1] if self._first_word else words(text))
        for word in asked:
            shared[(self._holders or {}).get(word, [])] += 1 / len(asked)
        return shared


def _holders(texts: Sequence[str], first_word: bool) -> dict[str, Indexes]:
    """Return the numbers of the texts that hold each word, or begin with it."""
    holders: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        for word in set(words(text)[:1] if first_word else words(text)):
            holders.setdefault(word, []).append(number)
    return {word: np.array(numbers, np.int64) for word, numbers in holders.items()}
