"""Tensors of prompts, and the distribution of a model over THIS state's labels.

Supervised fine-tuning, sampling and the policy gradient all call ``action_distribution``, so the probability that an
action was sampled with and the one that it is trained with cannot drift apart.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical

from reflectrl.core import InvalidInput
from reflectrl.lm.chat import turn_of
from reflectrl.lm.pictures import Pictures
from reflectrl.lm.sequences import Inputs, Tokens, padded
from reflectrl.lm.tokenizer import are_added
from reflectrl.prompts import Menu, Prompt
from reflectrl.prompts.menu import Lines, text_of
from reflectrl.prompts.prompt import unreadable


class PlainText:
    """Tokenizes prompts and completions so that no text is read as a special token.

    Observations, actions and reflections may contain ``</s>`` or ``<|3|>``, for example from files that an agent reads.
    Only the labels that a menu shows, which are our own, become single tokens; all other text is tokenized without
    special tokens. Pictures come first, as ``pictures`` reads them. If the tokenizer has a chat template, a prompt is
    the user's turn, without spaces at its end, and what is answered begins the assistant's.

    Raises:
        InvalidInput: the chat template cannot be used.
    """

    def __init__(self, tokenizer: Any, pictures: Pictures | None = None) -> None:
        self._tokenizer = tokenizer
        self._pictures = pictures
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number for number, token in added.items() if token.special}
        self._special = special - {getattr(tokenizer, "unk_token_id", None)}
        self._around = list(tokenizer("")["input_ids"])
        turn = turn_of(tokenizer)
        self._turn = None if turn is None else (self._marks(turn.before), self._marks(turn.after))
        self._bare = {} if turn is None else {"add_special_tokens": False}  # the template has those

    def prompt(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, with the special tokens that begin every text."""
        return self.prompts([prompt])[0]

    def prompts(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Return the token ids of each prompt; the tokenizer is called once, or twice where there are labels.

        Raises:
            InvalidInput: a prompt with pictures, for a model that reads text.
        """
        parts = [_parted(prompt) if self._turn is None else _trimmed(*_parted(prompt)) for prompt in prompts]
        heads = self._plain([head for head, _ in parts], **self._bare)
        tails = iter(self._labelled([lines for _, lines in parts if lines]))
        words = [head + next(tails) if lines else head for head, (_, lines) in zip(heads, parts, strict=True)]
        return [self._framed(prompt, ids) for prompt, ids in zip(prompts, words, strict=True)]

    def _framed(self, prompt: Prompt, ids: list[int]) -> list[int]:
        """Insert the tokens of a prompt's pictures, if any, before its text, and put the user's turn around both."""
        opening = len(self._around) if self._turn is None and ids[: len(self._around)] == self._around else 0
        before, after = self._turn or (ids[:opening], [])
        shown: Iterable[int] = ()
        if prompt.images:
            if self._pictures is None:
                raise unreadable()
            shown = itertools.chain.from_iterable(map(self._pictures.tokens, prompt.images))
        return [*before, *shown, *ids[opening:], *after]

    def text(self, text: str) -> list[int]:
        """Return the token ids of a text without labels, with the special tokens that begin every text."""
        return self._plain([text])[0]

    def completion(self, text: str) -> list[int]:
        """Return the token ids of a text that follows others."""
        return self._plain([text], add_special_tokens=False)[0]

    def answer(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a prompt; the assistant's turn does not begin with a space."""
        return self.completion(text if self._turn is None else text.lstrip())

    def _marks(self, text: str) -> list[int]:
        """Return the token ids of a part of the chat template, special tokens included."""
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _labelled(self, parts: Sequence[Lines]) -> list[list[int]]:
        read = self._read([text_of(lines) for lines in parts], add_special_tokens=False)
        return [self._only_labels(ids, lines) for ids, lines in zip(read, parts, strict=True)]

    def _only_labels(self, ids: list[int], lines: Lines) -> list[int]:
        ours = [self._tokenizer.convert_tokens_to_ids(label) for label, _ in lines if label]
        if [number for number in ids if number in self._special] == ours:
            return ids
        # a text holds a special token
        after: list[str] = []
        for label, text in lines:
            after.append(text if label else after.pop() + text)
        return [number for label, text in zip(ours, after, strict=True) for number in (label, *self.completion(text))]

    def _plain(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        read = self._read(texts, split_special_tokens=True, **options)
        return [self._without_special(text, ids, **options) for text, ids in zip(texts, read, strict=True)]

    def _read(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        return [list(ids) for ids in self._tokenizer([*texts], **options)["input_ids"]] if texts else []

    def _without_special(self, text: str, ids: list[int], **options: Any) -> list[int]:
        if self._special.isdisjoint(ids[len(self._around) :] if ids[: len(self._around)] == self._around else ids):
            return ids
        # the vocabularies of unigram models hold special tokens as words, too: those are spelled
        read = self._tokenizer(text, split_special_tokens=True, return_special_tokens_mask=True, **options)
        spelled = (
            self._spelled(number) if number in self._special and not around else [number]
            for number, around in zip(ids, read["special_tokens_mask"], strict=True)
        )
        return [*itertools.chain.from_iterable(spelled)]

    def _spelled(self, number: int) -> list[int]:
        letters: list[int] = self._tokenizer.convert_tokens_to_ids([*self._tokenizer.convert_ids_to_tokens(number)])
        return letters


def _parted(prompt: Prompt) -> tuple[str, Lines]:
    """Split a prompt into its text up to the first label that is a single token, and the lines from there on."""
    lines = prompt.lines if prompt.menu and are_added(prompt.menu.all_labels) else ()
    first = next((number for number, (label, _) in enumerate(lines) if label), None)
    return (prompt.text, ()) if first is None else (text_of(lines[:first]), lines[first:])


def _trimmed(head: str, lines: Lines) -> tuple[str, Lines]:
    """Return the parts of a prompt without spaces at its end."""
    if not lines:
        return head.rstrip(), ()
    *others, (label, text) = lines
    return head, (*others, (label, text.rstrip()))


@dataclass(frozen=True)
class PromptBatch:
    """N prompts with menus, for one forward pass."""

    inputs: Inputs
    """Input that ends in N prompts; prefixes that they share may be computed once."""
    menu_size: Tensor
    """(N,) number of legal actions of each prompt."""
    choice_ids: Tensor
    """(A,) token ids of the labels, up to the longest menu in the batch."""
    positions: Tensor
    """(N, M) positions in ``choice_ids`` of the legal actions' labels, M the most legal actions; 0 beyond those of a
    prompt."""


class _Read(NamedTuple):
    ids: Tokens
    cut: bool


class PromptEncoder:
    """Tokenizes prompts within a length limit; caches the tokens of the ``cache_size`` most recent prompts."""

    def __init__(
        self,
        tokenizer: Any,
        label_ids: Sequence[int],
        max_length: int,
        cache_size: int = 50_000,
        *,
        pictures: Pictures | None = None,
    ) -> None:
        self._plain = PlainText(tokenizer, pictures)
        self._label_ids = list(label_ids)
        self.max_length = max_length
        self._cache_size = cache_size
        self._cache: OrderedDict[tuple[Prompt, int], _Read] = OrderedDict()
        self.given = 0
        """Number of prompts so far."""
        self.cut = 0
        """Number of them that were cut to fit."""

    def tokens(self, prompt: Prompt, reserve: int = 0) -> Tokens:
        """Return the token ids of ``prompt``, whose oldest history is dropped to leave ``reserve`` tokens free.

        Raises:
            InvalidInput: the prompt does not fit even without history, or has pictures that the model does not read.
        """
        return self.all_tokens([prompt], reserve)[0]

    def all_tokens(self, prompts: Sequence[Prompt], reserve: int = 0) -> list[Tokens]:
        """Return the token ids of each prompt, new ones in one call of the tokenizer; see ``tokens``."""
        known = {prompt: self._cache.pop((prompt, reserve), None) for prompt in prompts}
        missing = [prompt for prompt, read in known.items() if read is None]
        whole = self._plain.prompts(missing)
        known |= {prompt: self._fitted(prompt, ids, reserve) for prompt, ids in zip(missing, whole, strict=True)}
        self._cache.update(((prompt, reserve), read) for prompt, read in known.items() if read is not None)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        found = [read for prompt in prompts if (read := known[prompt]) is not None]
        self.given += len(found)
        self.cut += sum(read.cut for read in found)
        return [read.ids for read in found]

    def batch(self, prompts: Sequence[Prompt], device: torch.device) -> PromptBatch:
        """Return prompts with menus as padded rows; equal prompts share a row.

        Raises:
            InvalidInput: a prompt without a menu, or a menu with more actions than there are labels.
        """
        return self.with_menus(prompts, padded(self.rows(prompts), device))

    def rows(self, prompts: Sequence[Prompt], reserve: int = 0) -> list[Tokens]:
        """Check the menus of prompts and return their token ids; raises as ``batch`` does."""
        for prompt in prompts:
            self._menu(prompt)
        return self.all_tokens(prompts, reserve)

    def answer(self, text: str) -> Tokens:
        """Return the token ids of a text that follows a prompt."""
        return tuple(self._plain.answer(text))

    def continuation(self, text: str) -> Tokens:
        """Return the token ids of a text that follows what was written after a prompt."""
        return tuple(self._plain.completion(text))

    def with_menus(self, prompts: Sequence[Prompt], inputs: Inputs) -> PromptBatch:
        """Return ``inputs``, which end in ``prompts``, with the menus of these prompts; raises as ``batch`` does."""
        menus, device = [self._menu(prompt) for prompt in prompts], inputs.last.device
        shown = self._label_ids[: max(len(menu.all_labels) for menu in menus)]
        choice_ids = torch.tensor(shown, dtype=torch.long, device=device)
        sizes = [len(menu.positions) for menu in menus]
        positions = [[*menu.positions, *[0] * (max(sizes) - len(menu.positions))] for menu in menus]
        return PromptBatch(
            inputs, torch.tensor(sizes, device=device), choice_ids, torch.tensor(positions, device=device)
        )

    def _menu(self, prompt: Prompt) -> Menu:
        if prompt.menu is None:
            raise InvalidInput("a policy was given a reflector's prompt; expected one with a menu.")
        size = len(prompt.menu.all_labels)
        if size > len(self._label_ids):
            raise InvalidInput(
                f"a menu of {size} actions was given but the policy has {len(self._label_ids)} labels; raise the "
                "environment's max_actions."
            )
        return prompt.menu

    def _fitted(self, prompt: Prompt, ids: Sequence[int], reserve: int) -> _Read:
        """Return ``ids`` if the whole prompt fits, else the ids of a shortened prompt."""
        limit = self.max_length - reserve
        if cut := len(ids) > limit:
            ids = self._plain.prompt(prompt.fit(lambda shorter: len(self._plain.prompt(shorter)), limit))
        return _Read(tuple(ids), cut)


def action_distribution(model: Any, batch: PromptBatch) -> tuple[Categorical, Tensor]:
    """``pi(. | p(s), R, menu)`` for N prompts: (N, M) over the legal actions, and (N,) values (zeros without a head).

    Other labels, shown or not, have probability exactly 0, so an illegal action can never be sampled.
    """
    inputs = batch.inputs
    logits, values = model(input_ids=inputs.input_ids, choice_ids=batch.choice_ids, last=inputs.last, **inputs.extra)
    return over_menus(logits, batch), values


def over_menus(logits: Tensor, batch: PromptBatch) -> Categorical:
    """Return the distributions over (N, M) legal actions that follow from (N, A) logits of the labels."""
    logits = logits.gather(1, batch.positions)
    beyond = torch.arange(logits.size(1), device=logits.device) >= batch.menu_size[:, None]
    logits = logits.masked_fill(beyond, torch.finfo(logits.dtype).min)
    return Categorical(logits=logits, validate_args=False)
