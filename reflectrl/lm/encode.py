"""Tensors of prompts, and the distribution of a model over THIS state's labels.

Supervised fine-tuning, sampling and the policy gradient all call ``action_distribution``, so the probability that an
action was sampled with and the one that it is trained with cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical

from reflectrl.core import InvalidInput
from reflectrl.core.cache import BatchCache
from reflectrl.lm.pictures import Pictures
from reflectrl.lm.plain_text import PlainText
from reflectrl.lm.sequences import Inputs, Tokens, padded
from reflectrl.prompts import Menu, Prompt


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
        self._cache: BatchCache[tuple[Prompt, int], _Read] = BatchCache(cache_size)
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
        found = self._cache.get([(prompt, reserve) for prompt in prompts], self._fitted)
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
        shown = self._label_ids[: max(menu.size for menu in menus)]
        choice_ids = torch.tensor(shown, dtype=torch.long, device=device)
        sizes = [len(menu.positions) for menu in menus]
        positions = [[*menu.positions, *[0] * (max(sizes) - len(menu.positions))] for menu in menus]
        return PromptBatch(
            inputs, torch.tensor(sizes, device=device), choice_ids, torch.tensor(positions, device=device)
        )

    def _menu(self, prompt: Prompt) -> Menu:
        if prompt.menu is None:
            raise InvalidInput("a policy was given a reflector's prompt; expected one with a menu.")
        size = prompt.menu.size
        if size > len(self._label_ids):
            raise InvalidInput(
                f"a menu of {size} actions was given but the policy has {len(self._label_ids)} labels; raise the "
                "environment's max_actions."
            )
        return prompt.menu

    def _fitted(self, asked: Sequence[tuple[Prompt, int]]) -> list[_Read]:
        """Return the ids of each prompt, shortened to leave as many tokens free as stand beside it."""
        read = []
        for (prompt, reserve), ids in zip(asked, self._plain.prompts([prompt for prompt, _ in asked]), strict=True):
            limit = self.max_length - reserve
            cut = len(ids) > limit
            read.append(_Read(tuple(self._plain.prompt(self._plain.fitted(prompt, limit)) if cut else ids), cut))
        return read


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
