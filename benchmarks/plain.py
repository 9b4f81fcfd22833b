"""The plain implementation that the engine is compared with, which works as public code does.

It calls ``generate`` once per step, computes full-vocabulary logits, and processes each step of an episode separately.
It is short, but not slow on purpose: ``generate`` keeps key-value states while it writes, and prompts are tokenized
once. Players use the same random draws as those of ``reflectrl.lm``, so both sides play the same episodes.

There is a stronger baseline too: batches of similar length under a token budget, and the head of choice rows
(``action_distribution``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from engine_prompts import without_menu
from torch import Tensor
from torch.distributions import Categorical
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessor, LogitsProcessorList

from reflectrl.config.training import Reinforce
from reflectrl.core import Choice, Decision, Utterance
from reflectrl.lm.decode import Sampler
from reflectrl.lm.encode import PromptEncoder, action_distribution
from reflectrl.lm.policy import Scores
from reflectrl.lm.writer import SamplerProcessor
from reflectrl.prompts import Menu
from reflectrl.prompts.views import MenuView, View
from reflectrl.training.batch import StepSample
from reflectrl.training.objective import Objective, step_losses

REINFORCE = Objective(Reinforce())
Update = Callable[[Sequence[StepSample]], float]
"""Function that makes one update from steps and returns their mean loss."""


def menu_distribution(logits: Tensor, label_ids: Sequence[int], menus: Sequence[Menu]) -> Categorical:
    """Return the distributions over each prompt's own labels, from (N, V) logits of the whole vocabulary."""
    sizes = torch.tensor([len(menu.actions) for menu in menus], device=logits.device)
    ids = [torch.tensor([label_ids[at] for at in menu.positions]) for menu in menus]
    choices = logits.gather(1, pad_sequence(ids, batch_first=True).to(logits.device)).float()
    beyond = torch.arange(choices.size(1), device=logits.device) >= sizes[:, None]
    return Categorical(logits=choices.masked_fill(beyond, torch.finfo(choices.dtype).min), validate_args=False)


def drawn(distribution: Categorical, actions: Sequence[Sequence[str]], draws: Sequence[float]) -> list[Decision]:
    """Draw one action per row by inverting the cumulative distribution, as ``LMPolicy`` does."""
    probs = distribution.probs.cpu().double()
    cumulative = probs.cumsum(-1)
    index = (cumulative <= torch.tensor(draws, dtype=torch.double)[:, None] * cumulative[:, -1:]).sum(-1)
    columns = (index, distribution.log_prob(index.to(distribution.logits.device)), distribution.entropy(), probs)
    return [
        Decision(words[choice], logprob, entropy, Choice(choice, tuple(row[: len(words)])))
        for words, choice, logprob, entropy, row in zip(actions, *(column.tolist() for column in columns), strict=True)
    ]


# ---- acting ----------------------------------------------------------------------------------------------------------


class _MenuOnly(LogitsProcessor):
    """A logits processor that allows one token: the label that is drawn from the masked logits."""

    def __init__(self, views: Sequence[MenuView], label_ids: Sequence[int], draws: Sequence[float]) -> None:
        self._menus = [view.menu for view in views]
        self._label_ids = label_ids
        self._draws = draws
        self.decisions: list[Decision] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002 - the signature of transformers
        actions = [menu.actions for menu in self._menus]
        self.decisions = drawn(menu_distribution(scores, self._label_ids, self._menus), actions, self._draws)
        chosen = [
            [self._label_ids[menu.positions[decision.choice.index]]]
            for menu, decision in zip(self._menus, self.decisions, strict=True)
        ]
        only = torch.full_like(scores, -torch.inf)
        return only.scatter(1, torch.tensor(chosen, device=scores.device), 0.0)


class PlainPolicy:
    """Policy that calls ``generate(max_new_tokens=1)`` at each step, for ``batch_size`` left-padded prompts at once."""

    def __init__(self, model: Any, encoder: PromptEncoder, label_ids: Sequence[int], *, batch_size: int = 1) -> None:
        self._model = model
        self._encoder = encoder
        self._label_ids = label_ids
        self._batch_size = batch_size

    @torch.no_grad()
    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one decision per view."""
        decisions: list[Decision] = []
        for start in range(0, len(views), self._batch_size):
            part = views[start : start + self._batch_size]
            choose = _MenuOnly(part, self._label_ids, draws[start : start + self._batch_size])
            generate(self._model, [self._encoder.tokens(view.prompt) for view in part], 1, [choose])
            decisions += choose.decisions
        return decisions


class ScoringPolicy:
    """Policy that samples actions by the normalised probability of their words, without a menu in the prompt."""

    def __init__(self, model: Any, tokenizer: Any, encoder: PromptEncoder) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = encoder

    @torch.no_grad()
    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one decision per view, computed one by one."""
        return [self._decide(view, draw) for view, draw in zip(views, draws, strict=True)]

    def _decide(self, view: MenuView, draw: float) -> Decision:
        actions = view.menu.actions
        ids: list[list[int]] = self._tokenizer(list(actions))["input_ids"]
        asked = self._encoder.tokens(without_menu(view.prompt), reserve=max(map(len, ids)))
        return drawn(Categorical(logits=self._scores(asked, ids)[None], validate_args=False), [actions], [draw])[0]

    def _scores(self, prompt_ids: Sequence[int], action_ids: Sequence[Sequence[int]]) -> Tensor:
        """Return the (N,) mean log-probability of each action's tokens (normalised as in SayCan and TWOSOME)."""
        longest = max(map(len, action_ids))
        padded = [[*prompt_ids, *ids, *[ids[-1]] * (longest - len(ids))] for ids in action_ids]
        rows = torch.tensor(padded, device=self._model.device)
        # without logits_to_keep, the prompt's logits for a hundred actions would not fit into memory
        logits = self._model(rows, logits_to_keep=longest + 1, use_cache=False).logits[:, :-1].float()
        logprobs = logits.gather(-1, rows[:, -longest:, None]).squeeze(-1) - logits.logsumexp(-1)
        counts = torch.tensor([len(ids) for ids in action_ids], device=rows.device)
        spoken = torch.arange(longest, device=rows.device) < counts[:, None]
        return (logprobs * spoken).sum(-1) / counts


# ---- reflecting ------------------------------------------------------------------------------------------------------


class PlainReflector:
    """Reflector that calls ``generate`` at each step, for ``batch_size`` left-padded prompts until the last has ended.

    Args:
        model: the language model.
        tokenizer: decodes replies.
        encoder: encodes prompts.
        ends: token ids that end a reply.
        max_new_tokens: maximum length of a reply.
        temperature: sampling temperature; 0 for greedy.
        batch_size: number of replies written side by side.

    """

    hit_rate = 0.0

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        encoder: PromptEncoder,
        *,
        ends: Sequence[int],
        max_new_tokens: int,
        temperature: float = 0.0,
        batch_size: int = 1,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._ends = frozenset(ends)
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._batch_size = batch_size

    @torch.no_grad()
    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view."""
        said: list[list[int]] = []
        for start in range(0, len(views), self._batch_size):
            stop = start + self._batch_size
            rows = [self._encoder.tokens(view.prompt, reserve=self._max_new_tokens) for view in views[start:stop]]
            sampler = [SamplerProcessor(Sampler(draws[start:stop], self._temperature))] if self._temperature > 0 else []
            said += generate(self._model, rows, self._max_new_tokens, sampler, sorted(self._ends))
        return [self._utterance(ids) for ids in said]

    def _utterance(self, ids: list[int]) -> Utterance:
        length = next((at for at, token in enumerate(ids) if token in self._ends), len(ids))
        return Utterance(" ".join(self._tokenizer.decode(ids[:length], skip_special_tokens=True).split()), length)


def generate(
    model: Any,
    rows: Sequence[Sequence[int]],
    tokens: int,
    processors: Sequence[LogitsProcessor],
    ends: list[int] | None = None,
) -> list[list[int]]:
    """Return the new token ids of each row."""
    width = max(map(len, rows))
    padded = [[row[0]] * (width - len(row)) + list(row) for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    written = model.generate(
        input_ids=torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        logits_processor=LogitsProcessorList(processors),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=ends[0] if ends else model.generation_config.pad_token_id,
    )
    return written[:, width:].tolist()


# ---- updating --------------------------------------------------------------------------------------------------------


def plain_update(
    model: Any,
    optimizer: torch.optim.Optimizer,
    encoder: PromptEncoder,
    label_ids: Sequence[int],
    samples: Sequence[StepSample],
    *,
    rows: int = 1,
    objective: Objective = REINFORCE,
) -> float:
    """Make one optimizer step from full-vocabulary logits, with ``rows`` right-padded steps per forward pass."""

    def forward(part: Sequence[StepSample]) -> Scores:
        ids = [encoder.tokens(sample.view.prompt) for sample in part]
        width = max(map(len, ids))
        padded = torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in ids], device=model.device)
        logits = model(padded, use_cache=False).logits
        last = logits[torch.arange(len(ids), device=model.device), [len(row) - 1 for row in ids]]
        menus = [sample.view.menu for sample in part]
        return scores_of(menu_distribution(last, label_ids, menus), part)

    return update(
        model, optimizer, [samples[at : at + rows] for at in range(0, len(samples), rows)], forward, objective
    )


def bucketed_update(
    model: Any,
    optimizer: torch.optim.Optimizer,
    encoder: PromptEncoder,
    samples: Sequence[StepSample],
    *,
    budget: int,
    objective: Objective = REINFORCE,
) -> float:
    """Make one optimizer step as the fair baseline: steps of similar length, and only the labels' rows of the head.

    A forward pass has at most ``budget`` tokens. ``model`` needs a choice head (``add_choice_head``).
    """

    def forward(part: Sequence[StepSample]) -> Scores:
        batch = encoder.batch([sample.view.prompt for sample in part], model.device)
        return scores_of(action_distribution(model, batch)[0], part)

    return update(model, optimizer, list(buckets(encoder, samples, budget)), forward, objective)


def buckets(encoder: PromptEncoder, samples: Sequence[StepSample], budget: int) -> Iterator[list[StepSample]]:
    """Yield batches of steps in the order of length; a padded batch has at most ``budget`` tokens."""
    part: list[StepSample] = []
    for sample in sorted(samples, key=lambda sample: len(encoder.tokens(sample.view.prompt))):
        if part and (len(part) + 1) * len(encoder.tokens(sample.view.prompt)) > budget:
            yield part
            part = []
        part.append(sample)
    if part:
        yield part


def scores_of(distribution: Categorical, part: Sequence[StepSample]) -> Scores:
    """Return the scores of the actions of ``part``, one per row of ``distribution``."""
    chosen = torch.tensor([sample.decision.choice.index for sample in part], device=distribution.logits.device)
    entropies = distribution.entropy()
    nothing = torch.zeros_like(entropies)
    return Scores(distribution.log_prob(chosen), entropies, nothing, distribution.logits, nothing)


def update(
    model: Any,
    optimizer: torch.optim.Optimizer,
    parts: Sequence[Sequence[StepSample]],
    forward: Callable[[Sequence[StepSample]], Scores],
    objective: Objective,
) -> float:
    """Make one optimizer step from the summed gradients of all parts, and return the mean loss."""
    steps, total = sum(map(len, parts)), 0.0
    optimizer.zero_grad()
    for part in parts:
        scores = forward(part)
        rows = [(sample.decision.logprob, sample.advantage, sample.target) for sample in part]
        old_logprobs, advantages, targets = torch.tensor(rows, device=model.device).unbind(-1)
        loss = step_losses(
            objective,
            0.0,
            logprobs=scores.logprobs,
            old_logprobs=old_logprobs,
            advantages=advantages,
            entropies=scores.entropies,
            values=scores.values,
            old_values=scores.values,
            targets=targets,
            divergences=torch.zeros_like(targets),
        ).total
        (loss / steps).backward()
        total += float(loss.detach())
    optimizer.step()
    return total / steps
