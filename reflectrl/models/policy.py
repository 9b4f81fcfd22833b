"""The trained player: one forward pass, one label token, no decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from reflectrl.core import Decision
from reflectrl.models.encode import PromptEncoder, action_distribution
from reflectrl.prompts import Prompt


class LMPolicy:
    """Acts with a causal language model that has a choice head (``add_choice_head``)."""

    wants_hints = False

    def __init__(self, model: Any, encoder: PromptEncoder, *, greedy: bool = False, batch_size: int = 256) -> None:
        self._model = model
        self._encoder = encoder
        self._greedy = greedy
        self._batch_size = batch_size

    @torch.no_grad()
    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:
        """Sample by inverting the cumulative distribution at ``draws`` (or take the most probable label)."""
        was_training = self._model.training
        self._model.eval()
        decisions = [
            decision
            for start in range(0, len(prompts), self._batch_size)
            for decision in self._decide(
                prompts[start : start + self._batch_size], draws[start : start + self._batch_size]
            )
        ]
        self._model.train(was_training)
        return decisions

    def _decide(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> Iterator[Decision]:
        distribution, values = action_distribution(self._model, self._encoder.batch(prompts, self._model.device))
        probs = distribution.probs.cpu().double()
        if self._greedy:
            index = probs.argmax(-1)
        else:
            cumulative = probs.cumsum(-1)
            # in double precision a draw below 1 stays below the total, so the last action is never stepped past
            point = torch.tensor(draws, dtype=torch.double) * cumulative[:, -1]
            index = (cumulative <= point[:, None]).sum(-1)
        logprobs = distribution.log_prob(index.to(distribution.logits.device)).tolist()
        columns = (index.tolist(), logprobs, distribution.entropy().tolist(), probs.tolist(), values.tolist())
        for prompt, choice, logprob, entropy, row, value in zip(prompts, *columns, strict=True):
            actions = prompt.menu.actions if prompt.menu else ()
            yield Decision(choice, actions[choice], logprob, entropy, tuple(row[: len(actions)]), value)
