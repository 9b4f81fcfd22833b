"""Training of a small rater on the ratings of a run's recorded episodes, so that not every episode costs calls."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError

from reflectrl.config.schema import SFTPolicySection
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.run_files import recorded_iterations, training_episodes_file
from reflectrl.core.seeds import derive_seed
from reflectrl.core.settings import checked
from reflectrl.core.text import first_line
from reflectrl.data_gen.rows import Row
from reflectrl.lm.builtin import make_base
from reflectrl.lm.encode import PromptEncoder
from reflectrl.lm.load import LanguageModel, new_model, save_model
from reflectrl.lm.section import ModelSection
from reflectrl.lm.tokenizer import label_ids
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.team import Team
from reflectrl.prompts.rating import Questions, Scale, level_of
from reflectrl.prompts.views import View
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.turn import end_of
from reflectrl.seats.base import FrozenModel
from reflectrl.seats.rater import LearnedRater, episode_prompt, write_trained_as
from reflectrl.seats.table import view
from reflectrl.training.sft import train_sft

HELD_OUT = 10
"""One of so many rated episodes is held out of training, to compare ratings."""
BATCH_SIZE = 16


@dataclass(frozen=True)
class TrainedRater:
    """Result of the training of a rater."""

    rows: int
    """Number of rated episodes it was trained on."""
    held_out: int
    """Number of rated episodes it was compared with."""
    agreeing: int
    """Number of held-out episodes for which it gives the level of their rating."""


def train_rater(
    run: Path,
    out: Path,
    *,
    model: str,
    max_length: int,
    steps: int,
    learning_rate: float,
    advance: Callable[[int, int, float], None] | None = None,
) -> TrainedRater:
    """Fine-tune ``model`` on the ratings of episodes that RLFT has recorded in ``run``, and save it in the new ``out``.

    ``steps`` have 16 episodes each; the middle of those longer than ``max_length`` tokens is cut out. ``advance`` is
    called with (step, steps, loss) now and then.

    Raises:
        InvalidInput: ``out`` exists or cannot be made, a setting that no recipe may have, ``max_length`` is too small
            for the question alone, or a run without a rater, or with fewer than ``HELD_OUT`` recorded episodes that
            were rated.
        WorkFailed: the model cannot be written.
    """
    if out.exists():
        raise InvalidInput(f"{out} is there already; choose another --out.")
    batches = {"batch_size": BATCH_SIZE, "micro_batch_size": BATCH_SIZE, "max_grad_norm": 1.0, "held_out": 0.0}
    settings = checked(SFTPolicySection, "the training", steps=steps, learning_rate=learning_rate, **batches)
    shape = checked(ModelSection, "the rater's model", name=model, max_length=max_length, compute="float32")
    recipe = read_recipe(run)
    section = recipe.players.rater
    if section is None:
        raise InvalidInput(f"the recipe of {run} has no players.rater; expected a run whose episodes were rated.")
    scale = section.levels
    players = Team(recipe, RunFolder(run))
    questions = Questions(players.instructions, section.segment, section.include_actions, scale)
    rated = list(_rated(players))
    if len(rated) < HELD_OUT:
        raise InvalidInput(
            f"{run} has recorded {len(rated)} rated episodes; expected at least {HELD_OUT}: raise rlft.record_episodes."
        )
    rows = [
        Row("policy", episode_prompt(questions, shown), scale.levels[level], shown.task_id, 0, False)
        for number, (shown, level) in enumerate(rated)
        if number % HELD_OUT
    ]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        beside = tempfile.TemporaryDirectory(prefix=".reflectrl-", dir=out.parent)
    except OSError as error:
        raise InvalidInput(f"{out} cannot be made: {error.strerror}; choose another --out.") from error
    seed = derive_seed(recipe.seed, "learned rater")
    with beside as place:
        corpus = [row.prompt.text + row.completion for row in rows]
        base = make_base(shape, Path(place) / "base", corpus=corpus, labels=scale.levels, seed=seed)
        lm = new_model(base, labels=scale.levels, seed=seed)
        _check_length(lm, rows[0], scale, max_length)
        train_sft(
            lm,
            rows,
            player="policy",
            section=settings,
            labels=scale.levels,
            max_length=max_length,
            max_new_tokens={"policy": 1},
            drop_long_rows=False,
            output_dir=Path(place) / "checkpoints",
            seed=seed,
            on_step=advance,
        )
        made = Path(place) / "rater"
        with _write_errors(out):
            save_model(lm, made)
            write_trained_as(section, made)
            made.rename(out)
    return _compared(lm, questions, max_length, rated, len(rows))


@contextmanager
def _write_errors(out: Path) -> Iterator[None]:
    """Turn errors of the disk into ``WorkFailed`` with one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise WorkFailed(f"the rater cannot be written to {out}: {reason or error}; choose another --out.") from error


def _check_length(lm: LanguageModel, row: Row, scale: Scale, max_length: int) -> None:
    """Refuse a ``max_length`` without room for a prompt whose episode is cut; the rest is the same for all."""
    try:
        PromptEncoder(lm.tokenizer, label_ids(lm.tokenizer, scale.levels), max_length).tokens(row.prompt)
    except InvalidInput as error:
        raise InvalidInput(f"--max-length {max_length} is too small for the question alone: {error}") from error


def _rated(players: Team) -> Iterator[tuple[View, int]]:
    """Yield what a rater sees of each recorded episode with a rating, and its level."""
    for iteration in recorded_iterations(players.run.path):
        _, played = read_trajectories(players.run.recorded(training_episodes_file(iteration)))
        for trajectory in played:
            words = trajectory.turns[-1].said.get("rater")
            level = None if words is None else level_of(words.text)
            if level is not None:
                yield view("rater", replace(players.layout, images=()), end_of(trajectory)), level  # it reads text


def _compared(
    lm: LanguageModel, questions: Questions, max_length: int, rated: list[tuple[View, int]], rows: int
) -> TrainedRater:
    rater, held_out = LearnedRater(FrozenModel(lm, max_length), questions), rated[::HELD_OUT]
    said = rater.say([shown for shown, _ in held_out], [0.0] * len(held_out))
    agreeing = sum(level_of(words.text) == level for words, (_, level) in zip(said, held_out, strict=True))
    return TrainedRater(rows, len(held_out), agreeing)
