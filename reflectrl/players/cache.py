"""What reflectors with an exact cache share: a frozen, greedy reflector says the same of the same prompt, always."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from reflectrl.core import Utterance
from reflectrl.prompts import Prompt


class CachedReflector(ABC):
    """Asks ``write`` for what it has not said before; keeps ``cache_size`` reflections, dropping the longest unused.

    A cache is exact only for words that depend on nothing but the prompt: pass 0 for a reflector that samples.
    """

    wants_hints = False

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._cache: OrderedDict[Prompt, Utterance] = OrderedDict()
        self.asked = 0
        """Reflections asked for so far."""
        self.written = 0
        """Reflections that had to be written; the rest came from the cache."""

    @abstractmethod
    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """One new utterance a prompt."""

    @property
    def hit_rate(self) -> float:
        """Fraction of the reflections asked for that came from the cache."""
        return 1.0 - self.written / self.asked if self.asked else 0.0

    def clear(self) -> None:
        """Forget all reflections; needed only when the reflector's weights change (single player)."""
        self._cache.clear()

    def reflect(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """One utterance a prompt."""
        self.asked += len(prompts)
        if self._cache_size == 0:
            self.written += len(prompts)
            return self.write(prompts, draws)
        missing = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._cache]
        fresh = dict(zip(missing, self.write(missing, [0.0] * len(missing)), strict=True)) if missing else {}
        self.written += len(missing)
        self._cache.update(fresh)
        # popped at its first mention: a prompt that is repeated within the batch comes from the cache as well
        said = [self._recall(prompt, cached=fresh.pop(prompt, None) is None) for prompt in prompts]
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return said

    def _recall(self, prompt: Prompt, *, cached: bool) -> Utterance:
        self._cache.move_to_end(prompt)
        words = self._cache[prompt]
        return replace(words, tokens=0, cached=True) if cached else words
