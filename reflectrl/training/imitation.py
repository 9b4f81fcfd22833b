"""``Imitation``: imitation of corrected thoughts during RL (GTR, section 4: DAgger)."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from reflectrl.config.training import ThoughtTerm
from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import decode, encode
from reflectrl.core.seeds import derive_seed
from reflectrl.lm.policy import LMPolicy
from reflectrl.lm.sequences import split
from reflectrl.lm.thinking import WritingPolicy
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.prompts.chats import thought_of
from reflectrl.prompts.format import THOUGHTS
from reflectrl.rollout.record import with_images, without_images
from reflectrl.rollout.turn import policy_views
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.sft_examples import TextExample, text_losses

_HOLDERS = ("prompt",)
"""Path of field names to the object of a correction that has images, see ``without_images``."""


@dataclass(frozen=True)
class Correction:
    """A step whose thought was corrected."""

    prompt: Prompt
    thought: str
    action: str
    """Action that the policy chose, which is not imitated."""


class Imitation:
    """The objective's term ``sft_thought``, with the corrections that it samples; it does nothing without a term.

    Args:
        term: settings of the term; ``None`` if the objective has none.
        policy: the policy that is trained.
        layout: layout of the prompts.

    Raises:
        InvalidInput: the policy writes nothing that could be corrected.
    """

    def __init__(self, term: ThoughtTerm | None, policy: LMPolicy, layout: PromptFormat) -> None:
        if term is not None and not isinstance(policy, WritingPolicy):
            raise InvalidInput(
                f"terms.sft_thought was given, but with action_mode={layout.action_mode} the policy writes no "
                f"thoughts; remove it, or use a layout with action_mode {' or '.join(THOUGHTS)}."
            )
        self._term = term
        self._policy = policy
        self._layout = layout
        self.corrections: list[Correction] = []
        self.steps = 0
        """Number of steps, corrected or not, from which ``corrections`` come."""
        self._counts: list[tuple[float, float]] = []  # of each update: rows that were imitated, and too long ones

    def add(self, played: Sequence[Trajectory]) -> None:
        """Add the corrections of an iteration's fresh episodes."""
        if self._term is None:
            return
        if self._term.aggregate == "latest":
            self.corrections, self.steps = [], 0
        self.corrections += corrections_of(played, self._layout)
        self.steps += sum(len(each.turns) for each in played)

    def losses(
        self, model: Any, args: ReflectRLConfig, accelerator: Accelerator, update: int, count: int
    ) -> Iterator[Tensor]:
        """Yield the losses of micro-batches, whose sum is the term's loss for a minibatch of ``count`` steps.

        The number of the ``update`` determines the draws, together with the seed and the process.
        """
        if self._term is None or not isinstance(self._policy, WritingPolicy):
            return
        drawn = self._drawn(count, random.Random(derive_seed(args.seed, "thoughts", update, accelerator.process_index)))
        found = [self._policy.to_imitate(each.prompt, each.thought, each.action) for each in drawn]
        examples = [TextExample(*each) for each in found if each is not None]
        self._counts.append((len(examples), len(found) - len(examples)))
        rows = [(*example.prompt, *example.completion) for example in examples]
        weight = self._term.at(update / args.total_updates) / (count if self._term.sample == "all" else len(rows) or 1)
        for indices in split(rows, tokens=args.micro_batch_tokens, trees=False) if rows else ():
            chosen = [examples[index] for index in indices]
            lengths = torch.tensor([example.scored for example in chosen], device=accelerator.device)
            yield weight * (text_losses(model, chosen, accelerator.device) / lengths).sum()

    def _drawn(self, count: int, rng: random.Random) -> list[Correction]:
        """Draw at most ``count`` corrections without replacement."""
        if self._term is None or self._term.sample == "corrected":
            return rng.sample(self.corrections, min(count, len(self.corrections)))
        steps = rng.sample(range(self.steps), min(count, self.steps))
        return [self.corrections[at] for at in steps if at < len(self.corrections)]

    def means(self) -> dict[str, float]:
        """Return the fields ``imitated`` and ``imitated_too_long`` of ``Iteration``, and reset; empty without a term.

        They are NaN without updates.
        """
        counts, self._counts = self._counts or [(math.nan, math.nan)], []
        if self._term is None:
            return {}
        used, too_long = zip(*counts, strict=True)
        return {"imitated": fmean(used), "imitated_too_long": fmean(too_long)}

    def state(self, path: Path) -> dict[str, Any]:
        """Return the corrections as plain JSON values for the file ``path``; pictures are written beside it."""
        corrections = without_images(tuple(self.corrections), path, _HOLDERS)
        return {"steps": self.steps, "corrections": encode(corrections)}

    def restore(self, state: Mapping[str, Any], path: Path) -> None:
        """Restore the corrections from ``state``, which was read from the file ``path``."""
        self.steps = state["steps"]
        rows = with_images(state["corrections"], path, str(path), _HOLDERS)
        self.corrections = [decode(Correction, row, str(path)) for row in rows]


def corrections_of(played: Sequence[Trajectory], layout: PromptFormat) -> list[Correction]:
    """Return the steps whose thought a corrector rewrote and whose text named a legal action."""
    found = []
    for trajectory in played:
        for view, turn in zip(policy_views(trajectory, layout), trajectory.turns, strict=True):
            written, said = turn.decision.choice.written, turn.said.get("corrector")
            if written is None or said is None or not written.legal:
                continue
            thought = " ".join(said.text.split())
            if thought and thought != thought_of(written, layout.action_mode):
                found.append(Correction(view.prompt, thought, turn.decision.action))
    return found
