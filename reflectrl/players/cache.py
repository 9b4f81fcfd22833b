"""Exact cache for a frozen, greedy player, which answers equal prompts with equal words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from reflectrl.core import Utterance
from reflectrl.prompts import Prompt
from reflectrl.prompts.views import View


class CachedPlayer(ABC):
    """A player that calls ``write`` for new prompts only and caches the words of the ``cache_size`` prompts used last.

    The cache is exact only if the words depend on the prompt alone: pass 0 for a player that samples.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._cache: OrderedDict[Prompt, Utterance] = OrderedDict()
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
        prompts = [view.prompt for view in views]
        self.asked += len(prompts)
        if self._cache_size == 0:
            self.written += len(prompts)
            return self.write(prompts, draws)
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._cache]
        if missing:
            self._cache.update(zip(missing, self.write(missing, [0.0] * len(missing)), strict=True))
            self.written += len(missing)
        words = [self._cache[prompt] for prompt in prompts]
        for prompt in prompts:
            self._cache.move_to_end(prompt)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return words
