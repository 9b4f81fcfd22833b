"""Exact cache for a frozen, greedy player, which answers equal prompts with equal words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from reflectrl.core import Utterance
from reflectrl.core.cache import BatchCache
from reflectrl.prompts import Prompt
from reflectrl.prompts.views import View


class CachedPlayer(ABC):
    """A player that calls ``write`` for new prompts only and caches the words of the ``cache_size`` prompts used last.

    The cache is exact only if the words depend on the prompt alone: pass 0 for a player that samples.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._cache: BatchCache[Prompt, Utterance] = BatchCache(cache_size)
        self.asked = 0
        """Number of views answered so far."""
        self.written = 0
        """Number of these views whose words were not in the cache."""

    @abstractmethod
    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one new utterance per prompt."""

    @property
    def hit_rate(self) -> float:
        """Fraction of the views so far whose words came from the cache."""
        return 1.0 - self.written / self.asked if self.asked else 0.0

    def clear(self) -> None:
        """Empty the cache; needed only if the player's weights change (single player)."""
        self._cache.clear()

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view."""
        return self.answer([view.prompt for view in views], draws)

    def answer(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per prompt; only new prompts are written to."""
        self.asked += len(prompts)
        if self._cache_size == 0:
            return self._write(prompts, draws)
        return self._cache.get(prompts, lambda missing: self._write(missing, [0.0] * len(missing)))

    def _write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        words = self.write(prompts, draws)
        self.written += len(prompts)
        return words
