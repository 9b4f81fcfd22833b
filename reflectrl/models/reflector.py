"""The frozen player: a local language model that writes a short reflection on each state."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from reflectrl.core import Utterance
from reflectrl.models.encode import PromptEncoder
from reflectrl.players.cache import CachedReflector
from reflectrl.prompts import Prompt


class _Gumbel(LogitsProcessor):
    """Turns greedy search into exact sampling at a temperature, with one generator a row.

    The most probable token after adding Gumbel noise is a sample of the softmax, so each row depends on its own draw
    and not on who else is in the batch.
    """

    def __init__(self, draws: Sequence[float], temperature: float) -> None:
        self._rngs = [np.random.default_rng(random.Random(draw).getrandbits(64)) for draw in draws]
        self._temperature = temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the signature of transformers
        noise = np.stack([rng.gumbel(size=scores.size(1)) for rng in self._rngs])
        return scores / self._temperature + torch.as_tensor(noise, dtype=scores.dtype, device=scores.device)


class LMReflector(CachedReflector):
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
    ) -> None:
        super().__init__(0 if temperature > 0 else cache_size)
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, (), max_length)
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._batch_size = batch_size

    def speaks_with(self, model: Any) -> bool:
        """Whether ``model`` is the one that reflects (single player)."""
        return self._model is model

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """One utterance a prompt, at most ``max_new_tokens`` tokens each."""
        said: list[Utterance] = []
        was_training = self._model.training
        self._model.eval()
        for start in range(0, len(prompts), self._batch_size):
            stop = start + self._batch_size
            said += self._generate(prompts[start:stop], draws[start:stop])
        self._model.train(was_training)
        return said

    @torch.no_grad()
    def _generate(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        rows = [self._encoder.tokens(prompt, reserve=self._max_new_tokens) for prompt in prompts]
        width = max(len(row) for row in rows)
        pad = self._tokenizer.pad_token_id
        device = self._model.device
        sampling = [_Gumbel(draws, self._temperature)] if self._temperature > 0 else []
        written = self._model.generate(
            input_ids=torch.tensor([[pad] * (width - len(row)) + row for row in rows], device=device),
            attention_mask=torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device),
            logits_processor=LogitsProcessorList(sampling),
            max_new_tokens=self._max_new_tokens,
            do_sample=False,
            num_beams=1,
            # not the model's own default, which would count the padding and so see the rest of the batch
            repetition_penalty=1.0,
            eos_token_id=self._tokenizer.eos_token_id,
            pad_token_id=pad,
        )[:, width:].tolist()
        return [self._utterance(row) for row in written]

    def _utterance(self, ids: list[int]) -> Utterance:
        eos = self._tokenizer.eos_token_id
        said = ids[: ids.index(eos)] if eos in ids else ids
        return Utterance(" ".join(self._tokenizer.decode(said, skip_special_tokens=True).split()), len(said))
