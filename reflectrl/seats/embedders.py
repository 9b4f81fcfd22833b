"""``Embedder``: texts as unit vectors whose products are cosines; one by hashing, and a cache for any."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reflectrl.core.cache import BatchCache

Vectors = npt.NDArray[np.float32]
KEPT = 200_000
"""Number of texts whose vectors a cache keeps in memory: more than a store of ten thousand episodes has."""
_WORD = re.compile(r"\w+")


class Embedder(Protocol):
    """Converts texts, or the names of pictures, to vectors whose products are similarities."""

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``(len(texts), width)`` unit vectors, in order; the vector of a text without words may be 0."""
        ...


class HashingEmbedder:
    """Embeds by the hashes of words and of pairs of neighbouring words; needs no model, equal in every process."""

    def __init__(self, width: int = 256) -> None:
        self.width = width

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one vector a text, in which a word counts 1 and a pair of neighbouring words one half."""
        vectors = np.zeros((len(texts), self.width), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            found = words(text)
            for feature in found:
                self._add(vector, feature, 1.0)
            for pair in zip(found, found[1:], strict=False):
                self._add(vector, " ".join(pair), 0.5)
            vector /= math.sqrt(float(vector @ vector)) or 1.0
        return vectors

    def _add(self, vector: Vectors, feature: str, weight: float) -> None:
        number = zlib.crc32(feature.encode())
        vector[number % self.width] += weight if number >> 31 else -weight


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; numbers count as words."""
    return _WORD.findall(text.lower())


class EmbeddingCache:
    """Embeds each text once, of the ``KEPT`` used last; returns the same as ``embedder``."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: BatchCache[str, Vectors] = BatchCache(KEPT)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``, of which there is at least one; the embedder gets the new ones alone."""
        return np.array(self._vectors.get(texts, lambda new: list(self._embedder.embed(new))), np.float32)
