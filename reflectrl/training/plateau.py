"""Checks of supervised fine-tuning on held-out rows: the best weights are kept, and training ends behind its plateau.

Early stopping with patience (Prechelt 1998, "Early Stopping - But When?"), then the learning rate falls to 0 from the
best weights on: most of what a falling rate brings, it brings in its last fifth, which may begin at any step (Hägele et
al. 2024, "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations"). Where rows
are not known by heart, a plateau often shows only that the rate is too high: it then falls towards the bound, as long
as the score improves. Trainer's own means would need a second forward pass for accuracies, and reload the best weights
from checkpoints, one for each check.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from accelerate import PartialState
from safetensors.torch import load_file
from torch import nn

from reflectrl.config.schema import SFTPlayerSection
from reflectrl.core.jsonl import decode, encode
from reflectrl.data_gen.rows import Row
from reflectrl.lm.sequences import Tokens
from reflectrl.rollout.iteration import SFTEnds, SFTProgress, best_check, check_scores
from reflectrl.training.learner import Weights, copy_weights, load_weights
from reflectrl.training.sft_examples import ActionExample, Example, TextExample
from reflectrl.training.sharding import save_whole

MIN_ROWS, MAX_ROWS = 16, 256
"""Number of held-out rows that a check reads: with fewer, nothing is held out, because the best weights would be chosen
by chance. A kind of actions is reported where there are ``MIN_ROWS`` of it."""
_BEST, _STATE = "best.safetensors", "plateau.json"

MIN_GROUPS = 20
"""Least number of tasks, or episodes, that are held out if so many are the share: states of one are alike, so that few
would say little, however many rows they have."""

EVERY = 20
"""Number of checks of a training that reaches its bound."""
MIN_STEPS_APART = 10
FALL = 0.25
"""Length of the last fall of the learning rate to 0, behind a plateau, as a fraction of the steps before it."""
BY_HEART = 0.1
"""Excess of the held-out loss over the training loss, as a fraction of the first, from which the training rows count as
known by heart. A policy that fills calendars, of which there were 20,000, imitated 69 %
of the expert's held-out actions where it ended behind its plateau, after 2,250 steps, and 78 % after 4,500."""
LEARNED = 0.99
"""Accuracy in held-out rows at which nothing is left to be learned."""
GAIN = 0.005
"""Smallest fall of the score, in nats or as a fraction of the words, that makes training go on with ``patience``."""
OnCheck = Callable[[Mapping[str, Sequence[SFTProgress]]], None]
"""Called with all checks so far, by player."""


def held_out_rows(rows: Sequence[Row], share: float, seed: int) -> tuple[list[int], list[int]]:
    """Divide rows into those to train on and those to check on; no task, or no episode, has rows among both.

    Whole tasks are held out where ``share`` is at least two of them, as in the evaluation, otherwise single episodes:
    too few tasks would say little, and be missed in training.

    Args:
        rows: the rows.
        share: fraction of the rows, reached by whole tasks or episodes.
        seed: seed of the draw.

    Returns:
        Numbers of the rows of each part, in order; the second is empty with too few rows or episodes.
    """
    by_task, by_episode = defaultdict(list), defaultdict(list)
    for number, row in enumerate(rows):
        by_task[row.task].append(number)
        by_episode[row.task, row.seed].append(number)
    groups: Mapping[Any, list[int]] = by_task if share * len(by_task) >= 2 else by_episode
    if share * len(rows) < MIN_ROWS or share * len(groups) < 1:
        return [*range(len(rows))], []
    rng = random.Random(f"{seed} held out")
    held: list[int] = []
    for number, group in enumerate(rng.sample(list(groups), len(groups))):
        if len(held) < min(share * len(rows), MAX_ROWS) or number < min(math.floor(share * len(groups)), MIN_GROUPS):
            held += groups[group]
    kept = set(held)
    checked = sorted(rng.sample(held, min(len(held), MAX_ROWS)))
    return [number for number in range(len(rows)) if number not in kept], checked


def words_of(tokenizer: Any, completion: Tokens) -> list[list[int]]:
    """Return, for each word of a completion, the positions of the tokens that it is made of."""
    texts = [tokenizer.decode(completion[:end], skip_special_tokens=True) for end in range(len(completion) + 1)]
    spans = [*pairwise(map(len, texts))]
    return [
        [at for at, (begin, end) in enumerate(spans) if begin < word.end() and word.start() < end]
        for word in re.finditer(r"\S+", texts[-1])
    ]


@dataclass(frozen=True)
class Scored:
    """An example with what a model makes of it."""

    example: Example
    loss: float
    """Loss in nats, as in training."""
    hits: tuple[bool, ...]
    """For a text, whether each token is the most probable one; for a label, whether it is."""


def _hardest(scored: Sequence[Scored]) -> tuple[str | None, float]:
    """Return the kind of actions, by their first word, that is right least often, and how often; none of one kind."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    for each in scored:
        if isinstance(each.example, ActionExample) and (menu := each.example.prompt.menu):
            action = menu.actions[each.example.target]
            word = re.search(r"\w+", action)
            kinds[action if word is None else word[0]].append(all(each.hits))
    rates = {kind: fmean(hits) for kind, hits in kinds.items() if len(hits) >= MIN_ROWS}
    if len(rates) < 2:
        return None, 1.0
    return min(rates.items(), key=lambda item: item[1])


@dataclass(frozen=True)
class Fall:
    """A linear fall of the learning rate to 0."""

    begin: int
    """Step after which it begins."""
    factor: float
    """Factor of the learning rate there."""
    end: int
    """Step after which the rate is 0."""
    last: bool
    """Training ends with it; otherwise, a plateau in the fall begins the last one."""

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate of the step after ``step`` steps."""
        return self.factor * min((self.end - step) / max(self.end - self.begin, 1), 1.0)


class Plateau:
    """Checks of one training, with the best weights so far.

    Args:
        model: model that is trained.
        tokenizer: its tokenizer.
        examples: held-out examples; without any, nothing is checked or kept.
        section: bound, patience and distance of the checks.
        on_check: called after each check.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        examples: Sequence[Example],
        section: SFTPlayerSection,
        on_check: OnCheck | None = None,
    ) -> None:
        self.examples = examples
        self.history: dict[str, list[SFTProgress]] = {each.player: [] for each in examples}
        """All checks, by player."""
        self._model = model
        self._words = {
            each.completion: words_of(tokenizer, each.completion) for each in examples if isinstance(each, TextExample)
        }
        self._steps, self._patience = section.steps, section.patience
        self._every = section.check_every or max(MIN_STEPS_APART, math.ceil(section.steps / EVERY))
        self._on_check = on_check
        self._weights: Weights = {}
        self._fall: Fall | None = None
        self._late = False
        self._trained: dict[str, list[float]] = {}  # by player, sum and number of losses since the check before

    def add(self, losses: Iterable[tuple[str, float]]) -> None:
        """Add the losses of the rows of an optimizer step, each with the player that the row is of."""
        for player, loss in losses:
            total, count = self._trained.get(player, (0.0, 0))
            self._trained[player] = [total + loss, count + 1]

    def due(self, step: int) -> bool:
        """Return whether to check after ``step`` optimizer steps."""
        return bool(self.examples) and (step % self._every == 0 or step == self.last_step)

    @property
    def last_step(self) -> int:
        """The step after which training ends: its bound, or the end of the fall behind its plateau."""
        return self._steps if self._fall is None else min(self._fall.end, self._steps)

    def end(self, step: int) -> None:
        """End the training after ``step`` steps, as its time is up."""
        self._steps, self._late = step, True

    @property
    def ended(self) -> SFTEnds:
        """What ends the training at ``last_step``."""
        if self._late:
            return "minutes"
        return "plateau" if self._fall is not None and self._fall.last else "bound"

    def rate(self, step: int) -> float:
        """Return the factor of the learning rate of the step after ``step`` steps."""
        return 1.0 if self._fall is None else self._fall.rate(step)

    def check(self, step: int, scored: Sequence[Scored]) -> None:
        """Record a check, keep the weights if they are the best, and let the learning rate fall at a plateau.

        Args:
            step: number of optimizer steps that were made.
            scored: all held-out examples.
        """
        for player, records in self.history.items():
            own = [each for each in scored if each.example.player == player]
            records.append(self._record(step, player, own))
        self._trained = {}
        if step == self.last_step:
            for records in self.history.values():
                records[-1] = replace(records[-1], ended=self.ended)
        [checks] = {len(records) for records in self.history.values()}
        if checks - 1 == best_check(self.history):
            self._weights = copy_weights(self._model, "cpu")  # a model may fill more than half of a GPU
        falls_last = self._fall is not None and self._fall.last
        if not falls_last and self._patience is not None and self._since_gain() >= self._patience:
            self._fall = self._next_fall(step, self._patience)
            if self._fall.last:
                self.load_best()
        self._tell()

    def _since_gain(self) -> int:
        """Return the number of checks, in the fall if there is one, since the last that was better by ``GAIN``."""
        best, since = math.inf, 0
        for at, score in enumerate(check_scores(self.history)):
            if score < best - GAIN:
                best, since = score, at
        begin = 0 if self._fall is None else self._fall.begin
        [in_fall] = {sum(each.step > begin for each in records) for records in self.history.values()}
        return min(at - since, in_fall)

    def _next_fall(self, step: int, patience: int) -> Fall:
        recent = [each for records in self.history.values() for each in records[-patience:]]
        held_out = fmean(each.held_out_loss for each in recent)
        trained = fmean(each.loss or 0.0 for each in recent)  # no row was trained on: nothing is known of them
        learned = fmean(each.accuracy for each in recent) >= LEARNED
        if self._fall is None and not learned and held_out - trained < BY_HEART * held_out:
            return Fall(step, 1.0, self._steps, last=False)
        return Fall(step, self.rate(step), min(step + max(round(FALL * step), 1), self._steps), last=True)

    def _tell(self) -> None:
        if self._on_check is not None:
            self._on_check(self.history)

    def _record(self, step: int, player: str, own: Sequence[Scored]) -> SFTProgress:
        texts = [(each.example.completion, each) for each in own if isinstance(each.example, TextExample)]
        words = [all(each.hits[at] for at in word) for text, each in texts for word in self._words[text]]
        labels = [each for each in own if isinstance(each.example, ActionExample)]
        total, count = self._trained.get(player, (0.0, 0))
        hardest, accuracy = _hardest(labels)
        return SFTProgress(
            step,
            loss=total / count if count else None,
            held_out_loss=fmean(each.loss for each in own),
            accuracy=fmean(all(each.hits) for each in labels or own),
            word_accuracy=fmean(words) if words else None,
            hardest=hardest,
            hardest_accuracy=accuracy,
        )

    @property
    def best(self) -> dict[str, SFTProgress]:
        """By player, the check of the best weights; empty without checks."""
        at = best_check(self.history) if any(self.history.values()) else 0
        return {player: records[at] for player, records in self.history.items() if records}

    def load_best(self) -> None:
        """Load the best weights into the model, if there was a check."""
        if self._weights:
            load_weights(self._model, self._weights)

    def write_state(self, folder: Path) -> None:
        """Save the checks and the best weights in ``folder``; the main process does."""
        if self._weights:
            save_whole(self._weights, folder / _BEST)
        if not PartialState().is_main_process:
            return
        state = {"history": encode(self.history), "trained": self._trained, "fall": encode(self._fall)}
        state["ended_late"] = self._steps if self._late else None
        (folder / _STATE).write_text(json.dumps(state), encoding="utf-8")

    def read_state(self, folder: Path) -> None:
        """Restore what ``write_state`` saved, and report the checks again: there may have been more since."""
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        self.history = {
            player: decode(list[SFTProgress], records, str(folder / _STATE))
            for player, records in state["history"].items()
        }
        self._trained = state["trained"]
        self._fall = None if state["fall"] is None else decode(Fall, state["fall"], str(folder / _STATE))
        if state["ended_late"] is not None:
            self.end(state["ended_late"])
        if (folder / _BEST).exists():
            self._weights = load_file(folder / _BEST)
        self._tell()
