"""``Embedder``: texts as unit vectors whose products are cosines; one by hashing, and a cache for any."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from reflectrl.core.cache import BatchCache
from reflectrl.core.jsonl import append_jsonl, decode, drop_unfinished_line, read_jsonl

Vectors = npt.NDArray[np.float32]
KEPT = 200_000
"""Number of texts whose vectors a cache keeps in memory: more than a store of ten thousand episodes has."""
_WORD = re.compile(r"\w+")


class Embedder(Protocol):
    """Converts texts to vectors whose products are similarities."""

    @property
    def fingerprint(self) -> str:
        """Name of the vectors: embedders with different vectors have different names, so caches are never mixed."""
        ...

    @property
    def width(self) -> int:
        """Number of dimensions of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return ``(len(texts), width)`` unit vectors, in order; the vector of a text without words may be 0."""
        ...


class HashingEmbedder:
    """Embeds by the hashes of words and of pairs of neighbouring words; needs no model, equal in every process."""

    def __init__(self, width: int = 256) -> None:
        self.width = width
        self.fingerprint = f"hashing-{width}"

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


@dataclass(frozen=True)
class _Row:
    """One line of a cache's file."""

    text: str
    vector: str
    """Base64 of float32, little-endian."""


class EmbeddingCache:
    """Embeds each text once, of the ``KEPT`` used last; with a folder, the vectors are also kept for later processes.

    The file in the folder is named by the embedder's fingerprint, so vectors of different models are never mixed.
    """

    def __init__(self, embedder: Embedder, folder: Path | None = None) -> None:
        """Cache the vectors of ``embedder`` in memory and, where ``folder`` is given, in a file there."""
        self.fingerprint, self.width = embedder.fingerprint, embedder.width
        self._embedder = embedder
        self._vectors: BatchCache[str, Vectors] = BatchCache(KEPT)
        self._file: Path | None = None
        self._in_file: set[str] = set()
        if folder is not None:
            name = hashlib.sha256(self.fingerprint.encode()).hexdigest()[:16]
            self._file = folder / f"embeddings-{name}.jsonl"
            self._read(self._file)

    def _read(self, file: Path) -> None:
        drop_unfinished_line(file)
        for where, value in read_jsonl(file) if file.exists() else ():
            row = decode(_Row, value, where)
            self._vectors.add({row.text: np.frombuffer(base64.b64decode(row.vector), "<f4").astype(np.float32)})
            self._in_file.add(row.text)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``; only new texts are given to the embedder."""
        return np.array(self._vectors.get(texts, self._embed), np.float32).reshape(len(texts), self.width)

    def _embed(self, texts: list[str]) -> list[Vectors]:
        vectors = list(self._embedder.embed(texts))
        if self._file is not None:
            new = [(text, vector) for text, vector in zip(texts, vectors, strict=True) if text not in self._in_file]
            append_jsonl(self._file, [_row(text, vector) for text, vector in new])
            self._in_file.update(text for text, _ in new)
        return vectors


def _row(text: str, vector: Vectors) -> _Row:
    return _Row(text, base64.b64encode(vector.astype("<f4").tobytes()).decode())
