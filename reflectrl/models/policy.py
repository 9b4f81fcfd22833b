"""The trained player: one forward pass, one label token, no decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from reflectrl.core import Decision
from reflectrl.engine.sequences import Inputs, Tokens, padded
from reflectrl.engine.slots import Slots
from reflectrl.models.encode import PromptBatch, PromptEncoder, action_distribution
from reflectrl.prompts import Prompt


class LMPolicy:
    """Acts with a causal language model that has a choice head (``add_choice_head``)."""

    wants_hints = False

    def __init__(
        self,
        model: Any,
        encoder: PromptEncoder,
        *,
        greedy: bool = False,
        batch_size: int = 256,
        slots: Slots | None = None,
    ) -> None:
        """Act with ``model``, at most ``batch_size`` prompts a forward pass.

        With ``slots`` of this model, what prompts share with those of the last call is not read again: ``forget`` it
        whenever the weights have changed.
        """
        self._model = model
        self._encoder = encoder
        self._greedy = greedy
        self._batch_size = batch_size
        self._slots = slots

    @property
    def reused(self) -> float:
        """Fraction of the prompts' tokens, so far, whose states were there already."""
        return 0.0 if self._slots is None or not self._slots.given else 1 - self._slots.computed / self._slots.given

    def forget(self) -> None:
        """Reuse nothing of what was computed before: the weights have changed."""
        if self._slots is not None:
            self._slots.clear()

    @torch.no_grad()
    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:
        """Sample by inverting the cumulative distribution at ``draws`` (or take the most probable label)."""
        was_training = self._model.training
        self._model.eval()
        decisions: dict[int, Decision] = {}
        for indices, inputs in self._passes(self._encoder.rows(prompts)):
            if not indices:  # only to be read: what the next ones share
                token = inputs.input_ids[0, :1]
                self._model(input_ids=inputs.input_ids, choice_ids=token, last=inputs.last, **inputs.extra)
                continue
            part = [prompts[index] for index in indices]
            batch = self._encoder.with_menus(part, inputs)
            decisions |= zip(indices, self._decide(part, batch, [draws[index] for index in indices]), strict=True)
        self._model.train(was_training)
        return [decisions[index] for index in range(len(prompts))]

    def _passes(self, rows: Sequence[Tokens]) -> Iterator[tuple[Sequence[int], Inputs]]:
        """Forward passes, and which prompts end in each."""
        if self._slots is None:
            for start in range(0, len(rows), self._batch_size):
                part = rows[start : start + self._batch_size]
                yield range(start, start + len(part)), padded(part, self._model.device)
            return
        same: dict[Tokens, list[int]] = {}
        for index, row in enumerate(rows):
            same.setdefault(row, []).append(index)
        distinct = list(same)
        for numbers, inputs in self._slots.read(distinct):
            indices = [same[distinct[number]] for number in numbers]
            repeats = torch.tensor([len(each) for each in indices], device=inputs.last.device)
            last = inputs.last.repeat_interleave(repeats) if indices else inputs.last
            yield [index for each in indices for index in each], replace(inputs, last=last)

    def _decide(self, prompts: Sequence[Prompt], batch: PromptBatch, draws: Sequence[float]) -> Iterator[Decision]:
        distribution, values = action_distribution(self._model, batch)
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
