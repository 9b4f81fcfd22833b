"""``Column``: one kind of texts of all past episodes, each different text embedded once, compared with a query's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from reflectrl.memory.embedders import Embedder, words

KeyMatch = Literal["embed", "lexical", "hybrid"]
Numbers = npt.NDArray[np.float32]
Indexes = npt.NDArray[np.int64]
DECIMALS = 6
"""Similarities that agree in so many are equal: float32 sums differ beyond by the order in which they are made."""


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
        embedder: Embedder,
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
        self._vectors = embedder.embed(list(numbers)) if by != "lexical" else None
        self._first_word = first_word
        self._holders: dict[str, Indexes] | None = None if by == "embed" else _holders(list(numbers), first_word)

    def best(self, text: str, vector: Numbers, among: Indexes) -> Numbers:
        """Return the similarity of the text that is nearest in each episode: ``(len(among),)``, 0 where there is none.

        Args:
            text: the query.
            vector: (width,) its embedding.
            among: the episodes to look at, rising.

        """
        counts = self.counts[among]
        best = np.zeros(len(among), np.float32)
        if counts.any():
            values = self._similarities(text, vector, self._positions(among, counts))
            starts = np.cumsum(counts) - counts
            best[counts > 0] = np.maximum.reduceat(values, starts[counts > 0])
        return best

    def nearest(self, text: str, vector: Numbers, episode: int) -> int | None:
        """Return the place of the nearest text in an episode, the earliest of equal ones; ``None`` without any text."""
        positions = self._positions(np.array([episode]), self.counts[[episode]])
        if not len(positions):
            return None
        return int(self._places[positions[np.argmax(np.round(self._similarities(text, vector, positions), DECIMALS))]])

    def _positions(self, among: Indexes, counts: Indexes) -> Indexes:
        """Return where in ``_texts`` the texts of these episodes stand."""
        offsets = self._starts[among] - (np.cumsum(counts) - counts)
        return np.repeat(offsets, counts) + np.arange(counts.sum())

    def _similarities(self, text: str, vector: Numbers, positions: Indexes) -> Numbers:
        """Return the similarity of the texts at ``positions``; equal texts are compared once."""
        texts = self._texts[positions]
        wanted = np.zeros(self._different, np.bool_)
        wanted[texts] = True
        rows = np.flatnonzero(wanted)
        values = np.full(self._different, -np.inf, np.float32)
        if self._vectors is not None:
            few = 3 * len(rows) < len(values)  # rows that are picked are copied first
            values[rows] = self._vectors[rows] @ vector if few else (self._vectors @ vector)[rows]
        if self._holders is not None:
            values[rows] = np.maximum(values[rows], self._shared_words(text)[rows])
        return values[texts]

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
