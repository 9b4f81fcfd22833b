"""``Writer`` generates text after prompts; ``LMReflector`` is a frozen player, and ``LocalModel`` sums up and rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from reflectrl.core import Observation, Utterance
from reflectrl.core.messages import LabelChat, Messages
from reflectrl.lm.decode import Sampler, write
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.head import add_choice_head, in_eval_mode
from reflectrl.lm.load import LanguageModel
from reflectrl.lm.paged import PagedWriter, writes_in_pages
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.sequences import Tokens
from reflectrl.lm.tokenizer import label_ids
from reflectrl.prompts import Menu, Prompt
from reflectrl.prompts.chats import plain_prompt
from reflectrl.prompts.players import CachedPlayer
from reflectrl.prompts.rating import Scale
from reflectrl.prompts.views import MenuView


class SamplerProcessor(LogitsProcessor):
    """Logits processor that leaves ``generate`` no choice but the sampler's token."""

    def __init__(self, sampler: Sampler, first: int = 0) -> None:
        self._sampler = sampler
        self._first = first  # index of the first row's sequence
        self._written = 0  # number of tokens of each text

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the signature of transformers
        """Return (N, V) scores: 0 for the token that was chosen, minus infinity for all others."""
        places = [(self._first + row, self._written) for row in range(len(scores))]
        chosen = self._sampler.choose(scores, places)
        self._written += 1
        return torch.full_like(scores, -torch.inf).scatter_(1, torch.tensor(chosen, device=scores.device)[:, None], 0.0)


@contextmanager
def _without_settings(model: Any) -> Iterator[None]:
    """Take away the model's own ``generation_config``, from which ``generate`` would complete any that it is given.

    Its penalties and suppressed tokens would change what texts are sampled from, but not what they are scored with.
    """
    theirs, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = theirs


class Writer:
    """Writes with a language model until a token ends the text.

    With ``prefix_cache`` of this model, prefixes that prompts share with those of the last call are not computed again,
    on a GPU by continuous batching of ``transformers``, which replays passes in place of launching each operation;
    without it, ``generate`` of ``transformers`` does everything, with at most ``batch_size`` prompts at a time. A text
    ends with the tokenizer's end-of-text token, or with one of ``ends``.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        batch_size: int = 256,
        prefix_cache: PrefixCache | None = None,
        ends: Sequence[int] = (),
    ) -> None:
        self.max_new_tokens = max_new_tokens
        self.end = tokenizer.eos_token_id
        """Token that ends a text."""
        self._model = model
        self._pad = tokenizer.pad_token_id
        self._batch_size = batch_size
        self._prefix_cache = prefix_cache
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._ends = frozenset({self.end, *ends})
        self._paged = PagedWriter(self._base, ends=self._ends, limit=max_new_tokens)

    def forget(self) -> None:
        """Drop key-value states, which decide the last bits of logits: the state of a new process."""
        self._paged.forget()
        if self._prefix_cache is not None:
            self._prefix_cache.clear()

    def write(self, rows: Sequence[Tokens], sampler: Sampler) -> list[list[int]]:
        """Return the ids of the text after each row, at most ``max_new_tokens``, without the token that ends it."""
        with in_eval_mode(self._model):
            if self._prefix_cache is None:
                firsts = range(0, len(rows), self._batch_size)
                return [ids for first in firsts for ids in self._generate(rows, first, sampler)]
            if self._base.device.type == "cuda" and writes_in_pages(self._base):
                return self._paged.write(rows, sampler)
            return write(self._base, self._prefix_cache, rows, sampler, ends=self._ends, limit=self.max_new_tokens)

    @torch.no_grad()
    def _generate(self, rows: Sequence[Tokens], first: int, sampler: Sampler) -> list[list[int]]:
        """Generate like ``write`` for the rows of a batch, with transformers alone."""
        batch = rows[first : first + self._batch_size]
        width = max(len(row) for row in batch)
        device, pictures = self._model.device, getattr(self._base, "pictures", None)
        ids = torch.tensor([[self._pad] * (width - len(row)) + [*row] for row in batch], device=device)
        settings = GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(self._ends),
            pad_token_id=self._pad,
        )
        with _without_settings(self._base):
            written = self._base.generate(
                **({"input_ids": ids} if pictures is None else pictures.inputs(ids, self._base.dtype)),
                attention_mask=torch.tensor(
                    [[0] * (width - len(row)) + [1] * len(row) for row in batch], device=device
                ),
                logits_processor=LogitsProcessorList([SamplerProcessor(sampler, first)]),
                generation_config=settings,
            )[:, width:].tolist()
        stops = [next((at for at, token in enumerate(ids) if token in self._ends), len(ids)) for ids in written]
        return [ids[:stop] for ids, stop in zip(written, stops, strict=True)]


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
        **writing: Any,
    ) -> None:
        """Reflect with ``model``; ``writing`` are further settings of a ``Writer``."""
        super().__init__(0 if temperature > 0 else cache_size)
        self._model = model
        self._tokenizer = tokenizer
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        pictures = getattr(base, "pictures", None)
        self._encoder = PromptEncoder(tokenizer, (), max_length, pictures=pictures)
        self._temperature = temperature
        self._writer = Writer(model, tokenizer, max_new_tokens=max_new_tokens, **writing)

    def speaks_with(self, model: Any) -> bool:
        """Return whether ``model`` is the one that reflects (single player)."""
        return self._model is model

    def clear(self) -> None:
        """Drop all cached reflections and states, since the weights have changed (single player)."""
        super().clear()
        self.forget()

    def forget(self) -> None:
        """Drop cached states, see ``Writer.forget``."""
        self._writer.forget()

    def continued(self, rows: Sequence[Tokens], draws: Sequence[float]) -> list[list[int]]:
        """Return the ids of the text after each row, without the token that ends it."""
        return self._writer.write(rows, Sampler(draws, self._temperature))

    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per prompt, at most ``max_new_tokens`` tokens each."""
        rows = self._encoder.all_tokens(prompts, reserve=self._writer.max_new_tokens)
        said = self.continued(rows, draws)
        texts = (self._tokenizer.decode(ids, skip_special_tokens=True) for ids in said)
        return [Utterance(" ".join(text.split()), len(ids)) for text, ids in zip(texts, said, strict=True)]


SUMMARY_TOKENS = 80
SUMMARY_CUE = "Summary:"
RATING_CUE = "Rating:\n"
"""Cue before a rating; its newline makes the level a token of its own."""
_BATCH = 32


class LocalText:
    """Answers chats with the words of ``writer``, which reads them as plain text that ends with ``cue``."""

    def __init__(self, writer: CachedPlayer, cue: str) -> None:
        self._texts = writer
        self._cue = cue

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer per chat, on one line."""
        return [said.text for said in self._texts.answer([plain_prompt(chat, self._cue) for chat in chats], draws)]


class LocalModel(LocalText):
    """A frozen causal language model: it writes summaries greedily, and its rating is the most probable level.

    Like the local players, it reads a question as the user's turn if it has a chat template. A rating is never missing,
    but that of a small model may be meaningless: audit it. The middle of a question that is too long is cut out.
    """

    def __init__(self, lm: LanguageModel, scale: Scale, *, max_length: int, cue: str = SUMMARY_CUE) -> None:
        """Ask ``lm``, whose prompts and texts after a ``cue`` have at most ``max_length`` tokens.

        Raises:
            InvalidInput: a level of ``scale`` is not one token of its tokenizer.
        """
        levels = label_ids(lm.tokenizer, scale.levels)
        add_choice_head(lm.base)
        writer = LMReflector(
            lm.model,
            lm.tokenizer,
            max_length=max_length,
            max_new_tokens=SUMMARY_TOKENS,
            cache_size=0,
            batch_size=_BATCH,
        )
        super().__init__(writer, cue)
        encoder = PromptEncoder(lm.tokenizer, levels, max_length, cache_size=0)
        self._chooser = LMPolicy(lm.model, encoder, greedy=True, batch_size=_BATCH)

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level per chat."""
        here = Observation("", ())
        menus = [Menu(chat.labels, chat.actions) for chat in chats]
        views = [
            MenuView(plain_prompt(chat, RATING_CUE, menu), here, (), {}, menu=menu)
            for chat, menu in zip(chats, menus, strict=True)
        ]
        return [decision.choice.index for decision in self._chooser.act(views, draws)] if views else []
