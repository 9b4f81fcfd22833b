"""The frozen player: a local language model that writes a short reflection on each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reflectrl.core import Utterance
from reflectrl.engine.decode import Sampler
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.models.encode import PromptEncoder
from reflectrl.models.writer import Writer
from reflectrl.prompts import Prompt
from reflectrl.prompts.players import CachedPlayer


class LMReflector(CachedPlayer):
    """Reflects with a causal language model.

    At temperature 0 the words depend on the prompt only and the model never changes, so the reflections of
    ``cache_size`` prompts are cached; sampled reflections never are.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_length: int,
        max_new_tokens: int = 100,
        temperature: float = 0.0,
        cache_size: int = 100_000,
        batch_size: int = 256,
        prefix_cache: PrefixCache | None = None,
        ends: Sequence[int] = (),
    ) -> None:
        """Reflect with ``model``; see ``Writer`` for the last three."""
        super().__init__(0 if temperature > 0 else cache_size)
        self._model = model
        self._tokenizer = tokenizer
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        pictures = getattr(base, "pictures", None)
        self._encoder = PromptEncoder(tokenizer, (), max_length, pictures=pictures)
        self._temperature = temperature
        self._writer = Writer(
            model,
            tokenizer,
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            prefix_cache=prefix_cache,
            ends=ends,
        )

    def speaks_with(self, model: Any) -> bool:
        """Return whether ``model`` is the one that reflects (single player)."""
        return self._model is model

    def clear(self) -> None:
        """Drop all cached reflections and states, since the weights have changed (single player)."""
        super().clear()
        self.forget()

    def forget(self) -> None:
        """Drop cached states and drafts, see ``Writer.forget``."""
        self._writer.forget()

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance a prompt, at most ``max_new_tokens`` tokens each."""
        rows = self._encoder.all_tokens(prompts, reserve=self._writer.max_new_tokens)
        said = self._writer.write(rows, Sampler(draws, self._temperature))
        texts = (self._tokenizer.decode(ids, skip_special_tokens=True) for ids in said)
        return [Utterance(" ".join(text.split()), len(ids)) for text, ids in zip(texts, said, strict=True)]
