"""Stage 1b, supervised fine-tuning of one player from the base model (section 4.1.2), on TRL's ``SFTTrainer``.

L_reflect sums over a reflection's tokens and averages over rows, so that every token has the same weight. Here it is
divided by a constant, the mean length of the run's reflections: the loss is then in nats per token, and learning rate
and gradient clipping do not depend on the length of reflections. The constant matters only for a single player, where
it balances the two kinds of rows: a reflection weighs as much as an action on average.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from huggingface_hub import constants
from transformers import TrainerCallback

from reflectrl.config.schema import SFTPlayerSection
from reflectrl.core.garbage import living_objects_left_out
from reflectrl.core.seeds import derive_seed
from reflectrl.core.stop import Stop
from reflectrl.data_gen.rows import Row
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.head import add_choice_head
from reflectrl.lm.load import LanguageModel, no_progress_bars
from reflectrl.lm.seeding import seeded
from reflectrl.lm.sequences import Tokens
from reflectrl.lm.tokenizer import label_ids
from reflectrl.prompts.format import ActionMode
from reflectrl.rollout.iteration import SFTEnds, SFTProgress
from reflectrl.training.checkpoints import (
    checkpoint_step,
    last_checkpoint,
    read_generators,
    read_weights,
    write_checkpoint,
    write_weights,
)
from reflectrl.training.learner import (
    BrokenStep,
    clipped_norm,
    numbers_of_ranks,
    read_optimizer,
    write_optimizer,
)
from reflectrl.training.plateau import MIN_ROWS, OnCheck, Plateau, held_out_rows
from reflectrl.training.sft_examples import (
    ActionExample,
    Example,
    Player,
    encode_rows,
    labels_of,
)
from reflectrl.training.sft_trainer import RowTrainer, plan_batches

_STATE = "sft.json"


@dataclass(frozen=True)
class SFTSummary:
    """Summary of a finished training."""

    rows: int
    held_out: int
    """Number of rows that were held out and checked."""
    dropped: int
    """Number of rows left out because they do not fit even when cut."""
    steps: int
    """Number of optimizer steps made."""
    last_loss: float
    """Mean loss of the last reported steps, in nats."""
    ended: SFTEnds
    """What ended the training."""
    best: Mapping[str, SFTProgress]
    """By player, the check of the weights that were kept; empty without held-out rows, where these are the last."""


def train_sft(
    lm: LanguageModel,
    rows: Sequence[Row],
    *,
    player: Player,
    section: SFTPlayerSection,
    labels: Sequence[str],
    max_length: int,
    max_new_tokens: Mapping[str, int],
    drop_long_rows: bool,
    unchecked: Container[int] = (),
    output_dir: Path,
    seed: int,
    action_mode: ActionMode = "enumerated",
    prefix_reuse: bool = True,
    on_step: Callable[[int, int, float], None] | None = None,
    on_check: OnCheck | None = None,
    save_every: int = 100,
    stop: Stop | None = None,
    failures: Path | None = None,
) -> SFTSummary:
    """Train ``lm`` in place, to the best weights on held-out rows; a killed training resumes with the same result.

    Args:
        lm: the model to train.
        rows: rows of the reflector, of the policy, or of both for ``player="both"`` (a single model plays both).
        player: the player that is trained.
        section: settings of the training.
        labels: all menu labels.
        max_length: maximum length of a prompt with its completion, in tokens; longer prompts are cut as in rollouts.
        max_new_tokens: by player, number of tokens that a prompt leaves free for the player's text, as in rollouts.
        drop_long_rows: leave out rows that do not fit even when cut, instead of refusing them.
        unchecked: numbers of rows that show what no player reads at play; held-out rows are checked without them, if
            enough are left.
        output_dir: folder of the checkpoints; it may be removed once the model is saved elsewhere.
        seed: seed of the order of rows, and of dropout.
        action_mode: form of the policy's answers.
        prefix_reuse: read beginnings that many rows of a batch share once, if the model allows.
        on_step: called with (step, steps, loss) every few steps.
        on_check: called with all checks on held-out rows so far, by player, at each of them and when resuming.
        save_every: number of steps between checkpoints.
        stop: request to stop; training then writes a checkpoint after the current step, and the next call resumes it.
        failures: folder for a batch whose loss is not finite; beside the checkpoints by default.

    Raises:
        InvalidInput: rows are too long, of the wrong kind or too few, or batch sizes do not fit each other.
        WorkFailed: a loss or gradient is not finite, or a checkpoint cannot be written.
    """
    # a reflector answers in words, so labels need not be single tokens of its tokenizer
    ids = () if player == "reflector" else label_ids(lm.tokenizer, labels)
    encoder = PromptEncoder(lm.tokenizer, ids, max_length, pictures=lm.pictures)
    encoded = encode_rows(
        lm.tokenizer,
        encoder,
        rows,
        player=player,
        labels=labels,
        action_mode=action_mode,
        max_new_tokens=max_new_tokens,
        drop_long_rows=drop_long_rows,
    )
    trained, checked = (
        [number for number in part if number in encoded] for part in held_out_rows(rows, section.held_out, seed)
    )
    as_at_play = [number for number in checked if number not in unchecked]
    checked = as_at_play if len(as_at_play) >= MIN_ROWS else checked
    if not trained:  # what was held out is all that fits
        trained, checked = checked, []
    examples, held_out = ([each for number in part for each in encoded[number]] for part in (trained, checked))
    episodes = [(rows[number].task, rows[number].seed) for number in trained for _ in encoded[number]]
    plateau = Plateau(lm.model, lm.tokenizer, held_out, section, on_check)
    # the fingerprint prevents resuming from checkpoints of other rows, settings or shapes
    folder = output_dir / _fingerprint(lm, [*examples, *held_out], section, max_length, seed)
    # transformers collects garbage as training begins, with all rows alive
    with seeded(seed), no_progress_bars(), _choice_head(lm), _without_telemetry(), living_objects_left_out():
        checkpoint = last_checkpoint(folder)
        begun = 0 if checkpoint is None else checkpoint_step(checkpoint)
        batches = plan_batches(lm, examples, episodes, section, max_length, prefix_reuse=prefix_reuse)
        trainer = RowTrainer(lm, player, examples, batches, encoder, section, plateau.rate, folder, seed, begun)
        steps = _Steps(
            trainer,
            plateau,
            section,
            folder,
            begun,
            on_step,
            save_every,
            stop or Stop(),
            failures or output_dir / "failures",
        )
        if checkpoint is not None:
            steps.resume(checkpoint)
        if rank := trainer.accelerator.process_index:
            torch.manual_seed(derive_seed(seed, "rank", rank))  # of dropout
        if begun < plateau.last_step:
            trainer.train()
    plateau.load_best()
    lm.model.eval()
    return SFTSummary(
        rows=len(trained),
        held_out=len(checked),
        dropped=len(rows) - len(encoded),
        steps=steps.done,
        last_loss=steps.reported,
        ended=plateau.ended,
        best=plateau.best,
    )


class _Steps(TrainerCallback):
    """What happens around each optimizer step: clipping, checks, reports, checkpoints, and the end."""

    def __init__(
        self,
        trainer: RowTrainer,
        plateau: Plateau,
        section: SFTPlayerSection,
        folder: Path,
        begun: int,
        on_step: Callable[[int, int, float], None] | None,
        save_every: int,
        stop: Stop,
        failures: Path,
    ) -> None:
        self.done = begun
        """Number of optimizer steps that were made."""
        self.reported = math.nan
        """Mean loss of the steps of the last report, in nats."""
        self._losses: list[float] = []  # of the steps since then
        self._trainer = trainer
        self._plateau = plateau
        self._section = section
        self._folder = folder
        self._on_step = on_step
        self._save_every = save_every
        self._report_every = math.gcd(save_every, 10)  # so that a resumed training reports the same
        self._stop = stop
        self._failures = failures
        self._resumed: Path | None = None
        trainer.add_callback(self)

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Begin a step; the first one after a checkpoint draws as it would have without an interruption."""
        self._trainer.batch = []
        if self._resumed is not None:
            # its weights may be sharded now
            read_optimizer(self._resumed, self._trainer.made, self._trainer.schedule)
            read_generators(self._resumed, self._trainer.accelerator)
            self._resumed = None

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Clip the gradient.

        Raises:
            WorkFailed: the loss or the gradient is not finite.
        """
        trainer = self._trainer
        loss = torch.stack([each for _, each in trainer.batch]).mean()
        clipped_norm(trainer.accelerator, trainer.model, self._section.max_grad_norm, loss, self._broken)
        self._losses.append(trainer.accelerator.reduce(loss, "mean").item())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Check, report and save where each is due, and end the training at its plateau or on request."""
        self.done += 1
        plateau, trainer = self._plateau, self._trainer
        plateau.add(trainer.losses)
        if self.done < plateau.last_step and self._stop.late(self.done):
            plateau.end(self.done)
        if plateau.due(self.done):
            plateau.check(self.done, trainer.scored(plateau.examples))
        ends = self.done == plateau.last_step
        if ends or self.done == 1 or self.done % self._report_every == 0:
            self.reported = fmean(self._losses)
            self._losses.clear()
            if self._on_step is not None:
                self._on_step(self.done, plateau.last_step, self.reported)
        signals = numbers_of_ranks(trainer.accelerator, [self._stop.signal])
        self._stop.signal = int(max(max(signals)))  # a request on one process stops all of them
        if ends or self._stop.wanted or self.done % self._save_every == 0:
            self._save()
        if ends or self._stop.wanted:
            control.should_training_stop = True

    def _save(self) -> None:
        def write(fresh: Path) -> None:
            write_weights(fresh, self._trainer.model, self._trainer.processing_class)
            write_optimizer(fresh, self._trainer.made, self._trainer.schedule, self.done)
            self._plateau.write_state(fresh)
            if self._trainer.accelerator.is_main_process:
                (fresh / _STATE).write_text(json.dumps({"reported": self.reported}))

        # the older one is a fallback for a newer one that is damaged
        write_checkpoint(self._folder / f"checkpoint-{self.done}", write, self._trainer.accelerator, keep=2)

    def resume(self, checkpoint: Path) -> None:
        """Restore what ``_save`` wrote.

        Raises:
            InvalidInput: it is of another training.
        """
        read_weights(checkpoint, self._trainer.model)
        self._plateau.read_state(checkpoint)
        self.reported = json.loads((checkpoint / _STATE).read_text())["reported"]
        self._resumed = checkpoint

    def _broken(self) -> BrokenStep:
        """Return the report of the rows of all micro-batches, for a loss that is not finite."""
        step, player = self.done + 1, self._trainer.player
        rows = [
            {"prompt": each.prompt.text, "completion": labels_of(each.prompt)[each.target]}
            if isinstance(each, ActionExample)
            else {"prompt": self._text(each.prompt), "completion": self._text(each.completion)}
            for each, _ in self._trainer.batch
        ]
        name, where = f"sft-{player}-step-{step:05d}", f"step {step} of sft {player}"
        return BrokenStep(self._failures, name, where, rows, "lower the learning_rate of this player in another --run")

    def _text(self, tokens: Tokens) -> str:
        """Return the text of tokens, without the images among them."""
        text: str = self._trainer.processing_class.decode([token for token in tokens if token >= 0])
        return text


@contextmanager
def _without_telemetry() -> Iterator[None]:
    """Let TRL send nothing about this training."""
    before, constants.HF_HUB_DISABLE_TELEMETRY = constants.HF_HUB_DISABLE_TELEMETRY, True
    try:
        yield
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = before


@contextmanager
def _choice_head(lm: LanguageModel) -> Iterator[None]:
    """Give the model an action head inside the block; afterwards restore ``forward``, also removing TRL's patches."""
    found = [(module, vars(module).get("forward")) for module in (lm.model, lm.base)]
    add_choice_head(lm.base)
    try:
        yield
    finally:
        for module, forward in found:
            vars(module).pop("forward", None)
            if forward is not None:
                module.forward = forward


def _fingerprint(
    lm: LanguageModel, examples: Sequence[Example], section: SFTPlayerSection, max_length: int, seed: int
) -> str:
    shapes = [(name, tuple(value.shape)) for name, value in lm.model.named_parameters() if value.requires_grad]
    return hashlib.sha256(repr((section, max_length, seed, shapes, list(examples))).encode()).hexdigest()[:16]
