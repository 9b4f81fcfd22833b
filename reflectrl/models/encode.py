"""From prompts to tensors, and from a model to the distribution over THIS state's labels.

``action_distribution`` is the one function that supervised fine-tuning, sampling and the policy gradient all read, so
the probability an action was sampled with and the one it is trained with cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Categorical

from reflectrl.core import InvalidInput
from reflectrl.prompts import Prompt


@dataclass(frozen=True)
class PromptBatch:
    """N prompts as U distinct rows; equal prompts are computed once."""

    input_ids: Tensor
    """(U, T) token ids, padded on the right, where causal attention cannot see the padding."""
    last_index: Tensor
    """(U,) position of the last real token."""
    row: Tensor
    """(N,) which of the U rows each prompt is."""
    menu_size: Tensor
    """(N,) how many of the labels the prompt's menu uses."""
    choice_ids: Tensor
    """(A,) token ids of the labels, A the largest menu of the batch."""


class PromptEncoder:
    """Tokenizes prompts within a length limit; texts are tokenized once, the last ``cache_size`` of them are kept."""

    def __init__(self, tokenizer: Any, label_ids: Sequence[int], max_length: int, cache_size: int = 200_000) -> None:
        self._tokenizer = tokenizer
        self._label_ids = list(label_ids)
        self._max_length = max_length
        self._cache_size = cache_size
        self._tokens: dict[str, list[int]] = {}

    def tokens(self, prompt: Prompt, reserve: int = 0) -> list[int]:
        """Token ids of ``prompt``, shortened by its oldest history to leave ``reserve`` tokens free.

        Raises:
            InvalidInput: the prompt does not fit even without history.

        """
        limit = self._max_length - reserve
        ids = self._encode(prompt.text)
        if len(ids) <= limit:
            return ids
        return self._encode(prompt.fit(lambda text: len(self._encode(text)), limit).text)

    def batch(self, prompts: Sequence[Prompt], device: torch.device) -> PromptBatch:
        """Prompts with menus as one batch.

        Raises:
            InvalidInput: a prompt without a menu, or a menu larger than the labels there are.

        """
        sizes = [self._menu_size(prompt) for prompt in prompts]
        rows: dict[tuple[int, ...], int] = {}
        index = [rows.setdefault(tuple(self.tokens(prompt)), len(rows)) for prompt in prompts]
        width = max(len(ids) for ids in rows)
        # rows are padded with their own last token: any id does, since nothing attends to it
        padded = [list(ids) + [ids[-1]] * (width - len(ids)) for ids in rows]
        return PromptBatch(
            torch.tensor(padded, device=device),
            torch.tensor([len(ids) - 1 for ids in rows], device=device),
            torch.tensor(index, device=device),
            torch.tensor(sizes, device=device),
            torch.tensor(self._label_ids[: max(sizes)], device=device),
        )

    def _menu_size(self, prompt: Prompt) -> int:
        if prompt.menu is None:
            raise InvalidInput("a policy was given a reflector's prompt; expected one with a menu.")
        size = len(prompt.menu.actions)
        if size > len(self._label_ids):
            raise InvalidInput(
                f"a menu of {size} actions was given but the policy has {len(self._label_ids)} labels; raise the "
                "environment's max_actions."
            )
        return size

    def _encode(self, text: str) -> list[int]:
        ids = self._tokens.get(text)
        if ids is None:
            ids = list(self._tokenizer(text)["input_ids"])
            if len(self._tokens) >= self._cache_size:
                self._tokens.pop(next(iter(self._tokens)))
            self._tokens[text] = ids
        return ids


def action_distribution(model: Any, batch: PromptBatch) -> tuple[Categorical, Tensor]:
    """``pi(. | p(s), R, menu)`` for N prompts: the distribution over labels, and (N,) values (zeros without a head).

    Labels beyond a prompt's own menu have probability exactly 0, so an illegal action can never be sampled.
    """
    logits, values = model(input_ids=batch.input_ids, choice_ids=batch.choice_ids, last_index=batch.last_index)
    logits = logits[batch.row]
    beyond = torch.arange(logits.size(1), device=logits.device) >= batch.menu_size[:, None]
    logits = logits.masked_fill(beyond, torch.finfo(logits.dtype).min)
    return Categorical(logits=logits, validate_args=False), values[batch.row]
