"""The trained player: one forward pass and one label token, no decoding; it acts and scores with the same function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from reflectrl.core import Choice, Decision
from reflectrl.core.errors import ModelFailed
from reflectrl.lm.encode import PromptBatch, PromptEncoder, action_distribution
from reflectrl.lm.head import in_eval_mode
from reflectrl.lm.prefix_cache import PrefixCache
from reflectrl.lm.sequences import Inputs, Tokens, padded, read_tree, shares_enough, split
from reflectrl.prompts.views import MenuView


@dataclass(frozen=True)
class Scores:
    """Scores of N decisions under the present policy, with gradient."""

    logprobs: Tensor
    """(N,) natural log of the probability of each decision."""
    entropies: Tensor
    """(N,) entropy, in nats, of the distribution that each decision was drawn from."""
    values: Tensor
    """(N,) estimates of the return; zeros without a value head."""
    menu_logprobs: Tensor
    """(N, A) natural log of the probability of each action, in the order shown; very low beyond the end of a menu. A =
    0 for actions in JSON."""
    thought_logprobs: Tensor
    """(N,) natural log of the probability of the text before each action; 0 without a text."""


@dataclass(frozen=True)
class Part:
    """Decisions of a minibatch that one forward pass scores."""

    indices: tuple[int, ...]
    """Positions of the decisions in the minibatch, in the order of the scores."""
    views: tuple[MenuView, ...]
    """Views of the policy, one a step."""
    decisions: tuple[Decision, ...]
    rows: tuple[Tokens, ...]
    """Token ids of the prompts."""
    tree: bool
    """True if the prompts are computed as a prefix tree."""


def parts(
    rows: Sequence[Tokens],
    views: Sequence[MenuView],
    decisions: Sequence[Decision],
    *,
    max_tokens: int,
    trees: bool,
) -> list[Part]:
    """Divide decisions with token ids ``rows`` into forward passes of at most ``max_tokens`` tokens each."""
    return [
        Part(
            tuple(indices),
            tuple(views[index] for index in indices),
            tuple(decisions[index] for index in indices),
            tuple(rows[index] for index in indices),
            trees,
        )
        for indices in split(rows, tokens=max_tokens, trees=trees)
    ]


class LMPolicy:
    """Acts with a causal language model that has a choice head (``add_choice_head``)."""

    def __init__(
        self,
        model: Any,
        encoder: PromptEncoder,
        *,
        greedy: bool = False,
        batch_size: int = 256,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        """Act with ``model``, at most ``batch_size`` prompts a forward pass.

        With ``prefix_cache`` of this model, prefixes that prompts share with those of the last call are not computed
        again (call ``forget`` whenever the weights have changed), and prompts to score are computed as prefix trees.
        """
        self._model = model
        self._encoder = encoder
        self._greedy = greedy
        self._batch_size = batch_size
        self._prefix_cache = prefix_cache
        self._caches = [] if prefix_cache is None else [prefix_cache]
        self._base = model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def reused(self) -> float:
        """Fraction of all prompt tokens so far whose key-value states were cached."""
        given = sum(cache.given for cache in self._caches)
        return 1 - sum(cache.computed for cache in self._caches) / given if given else 0.0

    @property
    def prompts(self) -> tuple[int, int]:
        """Number of prompts read so far, and of those that were cut to fit the model."""
        return self._encoder.given, self._encoder.cut

    def greedy(self) -> LMPolicy:
        """Return a policy with the same weights and cache that takes the most probable action."""
        other = copy(self)
        other._greedy = True  # noqa: SLF001 - same class
        return other

    def forget(self) -> None:
        """Drop all cached states: the weights have changed."""
        if self._prefix_cache is not None:
            self._prefix_cache.clear()

    @torch.no_grad()
    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Sample by inverting the cumulative distribution at ``draws`` (or take the most probable label).

        Raises:
            ModelFailed: a probability of a frozen model is not finite; in training, the loss finds that.
        """
        with in_eval_mode(self._model):
            return self._choose(views, self._encoder.rows([view.prompt for view in views]), draws)

    def _choose(self, views: Sequence[MenuView], rows: Sequence[Tokens], draws: Sequence[float]) -> list[Decision]:
        """Choose a label after each of ``rows``, which end with the cue of the action."""
        decisions: dict[int, Decision] = {}
        for indices, inputs in self._passes(rows):
            if not indices:  # a pass over a prefix that the next passes share
                token = inputs.input_ids[0, :1]
                self._model(input_ids=inputs.input_ids, choice_ids=token, last=inputs.last, **inputs.extra)
                continue
            part = [views[index] for index in indices]
            batch = self._encoder.with_menus([view.prompt for view in part], inputs)
            decisions |= zip(indices, self._decide(part, batch, [draws[index] for index in indices]), strict=True)
        return [decisions[index] for index in range(len(views))]

    def rows(self, views: Sequence[MenuView], decisions: Sequence[Decision]) -> list[Tokens]:  # noqa: ARG002
        """Return the token ids to read for scoring each decision."""
        return self._encoder.rows([view.prompt for view in views])

    def divide(self, views: Sequence[MenuView], decisions: Sequence[Decision], *, max_tokens: int) -> list[Part]:
        """Divide a minibatch into forward passes of at most ``max_tokens`` tokens, padding included.

        With a prefix cache, prompts that share enough of their tokens form a prefix tree; other passes hold prompts of
        similar lengths.
        """
        rows = self.rows(views, decisions)
        width = self._base.config.get_text_config().hidden_size
        tree = self._prefix_cache is not None and shares_enough(rows, width)
        return parts(rows, views, decisions, max_tokens=max_tokens, trees=tree)

    def score(self, part: Part, model: Any = None) -> Scores:
        """Score decisions with gradient; ``model``, if given, is the policy's own model wrapped for several processes.

        Raises:
            InvalidInput: a decision that is not a choice from the menu.
        """
        inputs = read_tree(part.rows, self._base) if part.tree else padded(part.rows, self._base.device)
        batch = self._encoder.with_menus([view.prompt for view in part.views], inputs)
        distribution, values = action_distribution(self._model if model is None else model, batch)
        chosen = torch.tensor([decision.choice.index for decision in part.decisions], device=self._model.device)
        nothing = torch.zeros_like(values)
        return Scores(distribution.log_prob(chosen), distribution.entropy(), values, distribution.logits, nothing)

    def _passes(self, rows: Sequence[Tokens]) -> Iterator[tuple[Sequence[int], Inputs]]:
        """Yield forward passes, and the indices of the prompts that end in each."""
        if self._prefix_cache is None:
            for start in range(0, len(rows), self._batch_size):
                part = rows[start : start + self._batch_size]
                yield range(start, start + len(part)), padded(part, self._model.device)
            return
        same: dict[Tokens, list[int]] = {}
        for index, row in enumerate(rows):
            same.setdefault(row, []).append(index)
        distinct = list(same)
        for numbers, inputs in self._prefix_cache.read(distinct):
            indices = [same[distinct[number]] for number in numbers]
            repeats = torch.tensor([len(each) for each in indices], device=inputs.last.device)
            last = inputs.last.repeat_interleave(repeats) if indices else inputs.last
            yield [index for each in indices for index in each], replace(inputs, last=last)

    def _decide(self, views: Sequence[MenuView], batch: PromptBatch, draws: Sequence[float]) -> Iterator[Decision]:
        distribution, values = action_distribution(self._model, batch)
        one_a_view = torch.stack([distribution.entropy(), values], 1)
        found = torch.cat([distribution.probs, distribution.logits, one_a_view], 1).cpu()  # waits for the device once
        labels = distribution.probs.size(1)
        if not found[:, :labels].isfinite().all() and not any(p.requires_grad for p in self._model.parameters()):
            raise ModelFailed(
                "the policy's probabilities are not finite: its weights are damaged, or too large for its precision; "
                "load it with model.dtype=float32 and model.compute=float32, or train it again."
            )
        probs, logprobs, (entropies, values) = found[:, :labels].double(), found[:, labels:-2], found[:, -2:].T
        cumulative = probs.cumsum(-1)
        # in double precision a draw below 1 stays below the total, so the last action is never stepped past
        point = torch.tensor(draws, dtype=torch.double) * cumulative[:, -1]
        index = probs.argmax(-1) if self._greedy else (cumulative <= point[:, None]).sum(-1)
        chosen = logprobs.gather(1, index[:, None])[:, 0]
        columns = (each.tolist() for each in (index, chosen, entropies, probs, values))
        for view, choice, logprob, entropy, row, value in zip(views, *columns, strict=True):
            actions = view.menu.actions
            yield Decision(actions[choice], logprob, entropy, Choice(choice, tuple(row[: len(actions)])), value)
