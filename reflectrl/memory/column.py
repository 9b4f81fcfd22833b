"""``Column``: texts of one kind from all past episodes, each different text embedded once, to compare with a query."""

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
"""Decimals that decide whether similarities are equal; the order of float32 sums changes the digits beyond."""
FEW, FEW_SHORT, FEW_SPARSE = 4, 3, 64
"""Embeddings are picked out of an array that is more than so many times as large, else all of it is read: whole
embeddings, shortened ones, and a query's few dimensions of sparse ones."""
SHORT = 32
"""Dimensions of the shortened embeddings that bound a similarity, which end with the length of what is left out."""
MANY = 1024
"""Minimum number of texts for which bounds cost less than they save."""
SLACK = 1e-5
"""Addition to a bound that is larger than the rounding errors of its sums."""


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

    def best(self, text: str, vector: Numbers, among: Indexes | None = None, least: Numbers | None = None) -> Numbers:
        """Return the similarity of the nearest text in each episode: ``(n,)``, 0 for an episode without texts.

        Args:
            text: the query.
            vector: (width,) embedding of the query.
            among: (n,) indices of the episodes to compare; absent: all.
            least: (n,) lowest similarities of interest: lower ones may come back as -1; absent: all are of interest.

        """
        if among is None:
            return _largest(self._similarities(text, vector, self._texts), self.counts)
        counts = self.counts[among]
        texts = self._texts_of(among, counts)
        if least is None or (most := self._bounds(vector, texts)) is None:
            return _largest(self._similarities(text, vector, texts), counts)
        near = most >= np.repeat(least, counts)
        values = np.full(len(texts), -1, np.float32)
        values[near] = self._similarities(text, vector, texts[near])
        return _largest(values, counts)

    def bounds(self, vector: Numbers, among: Indexes) -> Numbers | None:
        """Return numbers that no similarity which ``best`` returns exceeds: ``(n,)``, ``None`` where they do not pay.

        Args:
            vector: (width,) embedding of the query.
            among: (n,) indices of the episodes to bound.

        """
        counts = self.counts[among]
        bounds = self._bounds(vector, self._texts_of(among, counts))
        return None if bounds is None else _largest(bounds, counts)

    def nearest(self, text: str, vector: Numbers, among: Indexes) -> list[int | None]:
        """Return the place of the nearest text in each episode, the first of equal ones; ``None`` without texts."""
        counts = self.counts[among]
        values = np.round(self._similarities(text, vector, self._texts_of(among, counts)), DECIMALS)
        parts = zip(self._starts[among], np.cumsum(counts) - counts, counts, strict=True)
        return [
            int(self._places[start + np.argmax(values[first : first + count])]) if count else None
            for start, first, count in parts
        ]

    def _texts_of(self, among: Indexes, counts: Indexes) -> Indexes:
        """Return the indices of the texts of these episodes, which have ``counts`` of them."""
        if np.array_equal(among, np.arange(len(self.counts))):
            return self._texts
        offsets = self._starts[among] - (np.cumsum(counts) - counts)
        positions: Indexes = np.repeat(offsets, counts) + np.arange(counts.sum())
        return self._texts[positions]

    def _bounds(self, vector: Numbers, texts: Indexes) -> Numbers | None:
        """Return numbers that the query's similarities to these texts do not exceed; ``None`` where they do not pay.

        The product of two vectors is at most that of their parts along some axes, plus the product of the lengths of
        the other parts. These axes are the embeddings' longest.

        """
        if self._holders is not None or len(texts) < MANY or len(vector) < FEW * SHORT or _sparse(vector):
            return None
        axes, shortened = self._shortened
        asked = _shorten(vector, axes)
        few = self._few(texts, FEW_SHORT)
        bounds: Numbers = shortened.take(texts, axis=0) @ asked if few else (shortened @ asked)[texts]
        return bounds + SLACK

    def _few(self, texts: Indexes, times: int = FEW) -> bool:
        """Return whether it costs less to pick these texts out of all different ones than to compare all."""
        return times * len(texts) < self._different

    def _similarities(self, text: str, vector: Numbers, texts: Indexes) -> Numbers:
        """Return the query's similarities to the texts at these indices, equal in ``DECIMALS`` for equal texts."""
        if self._holders is None:
            return self._products(vector, texts)
        shared = self._shared_words(text)[texts]
        return np.maximum(shared, self._products(vector, texts)) if len(self._vectors) else shared

    def _products(self, vector: Numbers, texts: Indexes) -> Numbers:
        """Return the products of ``vector`` and the embeddings of the texts at these indices."""
        if not _sparse(vector):
            return self._vectors[texts] @ vector if self._few(texts) else (self._vectors @ vector)[texts]
        used = np.flatnonzero(vector)
        if self._few(texts, FEW_SPARSE):
            return self._vectors[np.ix_(texts, used)] @ vector[used]
        return (vector[used] @ self._by_number[used])[texts]

    @cached_property
    def _by_number(self) -> Numbers:
        """Embeddings as ``(width, different texts)``, so that a few dimensions are read without the others."""
        return np.ascontiguousarray(self._vectors.T)

    @cached_property
    def _shortened(self) -> tuple[Numbers, Numbers]:
        """The longest axes, ``(width, SHORT - 1)``, and the shortened embeddings of the different texts."""
        vectors = self._vectors
        axes = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))[1][:, 1 - SHORT :].astype(np.float32)
        return axes, _shorten(vectors, axes)

    def _shared_words(self, text: str) -> Numbers:
        """Return the fraction of the query's words that each text holds; for first words, 1 if both agree."""
        shared = np.zeros(self._different, np.float32)
        asked = dict.fromkeys(words(text)[:1] if self._first_word else words(text))
        for word in asked:
            shared[(self._holders or {}).get(word, [])] += 1 / len(asked)
        return shared


def _shorten(vectors: Numbers, axes: Numbers) -> Numbers:
    """Return each vector's parts along the axes and, last, the length of the rest of it: ``(..., axes + 1)``."""
    along = vectors @ axes
    return np.concatenate([along, np.linalg.norm(vectors - along @ axes.T, axis=-1, keepdims=True)], axis=-1)


def _sparse(vector: Numbers) -> bool:
    """Return whether few dimensions are not 0, as in an embedding by hashing."""
    return bool(FEW * np.count_nonzero(vector) < len(vector))


def _largest(values: Numbers, counts: Indexes) -> Numbers:
    """Return the largest of each episode's values, which follow each other; 0 for an episode without values."""
    if len(values) == len(counts) and counts.all():
        return values  # one of each episode
    largest = np.zeros(len(counts), np.float32)
    if len(values):
        starts = np.cumsum(counts) - counts
        largest[counts > 0] = np.maximum.reduceat(values, starts[counts > 0])
    return largest


def _holders(texts: Sequence[str], first_word: bool) -> dict[str, Indexes]:
    """Return the indices of the texts that hold each word, or that begin with it."""
    holders: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        for word in set(words(text)[:1] if first_word else words(text)):
            holders.setdefault(word, []).append(number)
    return {word: np.array(numbers, np.int64) for word, numbers in holders.items()}
