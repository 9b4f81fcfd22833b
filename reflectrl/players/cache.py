"""Exact cache of a frozen, greedy player: equal prompts have equal words, always."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from reflectrl.core import Utterance
from reflectrl.prompts import Prompt
from reflectrl.prompts.views import View


class CachedPlayer(ABC):
    """Calls ``write`` for prompts not seen before; keeps the words of the ``cache_size`` prompts used last.

    The cache is exact only for words that depend on nothing but the prompt: pass 0 for a player that samples.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._cache: OrderedDict[Prompt, Utterance] = OrderedDict()
        self.asked = 0
        """Views answered so far."""
        self.written = 0
        """Views whose words had to be written; the rest came from the cache."""

    @abstractmethod
    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one new utterance a prompt."""

    @property
    def hit_rate(self) -> float:
        """Fraction of the views so far whose words came from the cache."""
        return 1.0 - self.written / self.asked if self.asked else 0.0

    def clear(self) -> None:
        """Empty the cache; needed only when the player's weights change (single player)."""
        self._cache.clear()

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance a view."""
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
