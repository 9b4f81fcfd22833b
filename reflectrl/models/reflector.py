"""The frozen player: a local language model that writes a short reflection on each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from reflectrl.core import Utterance
from reflectrl.engine.decode import Sampler, write
from reflectrl.engine.drafts import Drafts, pass_tokens
from reflectrl.engine.head import in_eval_mode
from reflectrl.engine.prefix_cache import PrefixCache
from reflectrl.engine.sequences import Tokens
from reflectrl.models.encode import PromptEncoder
from reflectrl.players.cache import CachedPlayer
from reflectrl.prompts import Prompt


class SamplerProcessor(LogitsProcessor):
    """Leaves ``generate`` no choice but the sampler's."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._written = 0  # tokens of each text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the signature of transformers
        """(N, V) scores: 0 for the token that was chosen, minus infinity for all others."""
        chosen = self._sampler.choose(scores, [(row, self._written) for row in range(len(scores))])
        self._written += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, torch.tensor(chosen, device=scores.device)[:, None], 0.0)


class LMReflector(CachedPlayer):
    """Reflects with a causal language model.

    With temperature 0 the words depend on the prompt only and the model never changes, so reflections are kept in an
    exact cache of ``cache_size`` prompts; sampled reflections are never cached.
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
        """Reflect with ``model``, at most ``batch_size`` prompts side by side.

        A reflection ends with the tokenizer's end-of-text token, or with one of ``ends``. With ``prefix_cache`` of this
        model, beginnings that prompts share with those of the last call are not read again; without, ``transformers``'
        ``generate`` does everything.
        """
        super().__init__(0 if temperature > 0 else cache_size)
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, (), max_length)
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._batch_size = batch_size
        self._prefix_cache = prefix_cache
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._drafts = Drafts(pass_tokens(self._base))
        self._ends = frozenset({tokenizer.eos_token_id, *ends})

    def speaks_with(self, model: Any) -> bool:
        """Return whether ``model`` is the one that reflects (single player)."""
        return self._model is model

    def clear(self) -> None:
        """Drop all cached reflections, and do as ``forget``: the weights have changed (single player)."""
        super().clear()
        self.forget()

    def forget(self) -> None:
        """Drop key-value states and drafts, which decide the last bits of logits: as a new process would begin."""
        self._drafts.clear()
        if self._prefix_cache is not None:
            self._prefix_cache.clear()

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance a prompt, at most ``max_new_tokens`` tokens each."""
        rows = self._encoder.all_tokens(prompts, reserve=self._max_new_tokens)
        with in_eval_mode(self._model):
            if self._prefix_cache is not None:
                said = write(
                    self._base,
                    self._prefix_cache,
                    rows,
                    Sampler(draws, self._temperature),
                    drafts=self._drafts,
                    ends=self._ends,
                    limit=self._max_new_tokens,
                )
            else:
                said = []
                for start in range(0, len(rows), self._batch_size):
                    stop = start + self._batch_size
                    said += self._generate(rows[start:stop], Sampler(draws[start:stop], self._temperature))
        texts = (self._tokenizer.decode(ids, skip_special_tokens=True) for ids in said)
        return [Utterance(" ".join(text.split()), len(ids)) for text, ids in zip(texts, said, strict=True)]

    @torch.no_grad()
    def _generate(self, rows: Sequence[Tokens], sampler: Sampler) -> list[list[int]]:
        """Do as ``write``, by transformers alone."""
        width = max(len(row) for row in rows)
        pad = self._tokenizer.pad_token_id
        device = self._model.device
        written = self._model.generate(
            input_ids=torch.tensor([[pad] * (width - len(row)) + [*row] for row in rows], device=device),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device),
            logits_processor=LogitsProcessorList([SamplerProcessor(sampler)]),
            max_new_tokens=self._max_new_tokens,
            do_sample=False,
            num_beams=1,
            # not the model's own default, which would count the padding and so see the rest of the batch
            repetition_penalty=1.0,
            eos_token_id=sorted(self._ends),
            pad_token_id=pad,
        )[:, width:].tolist()
        stops = [next((at for at, token in enumerate(ids) if token in self._ends), len(ids)) for ids in written]
        return [ids[:stop] for ids, stop in zip(written, stops, strict=True)]
