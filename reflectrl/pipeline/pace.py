"""Seconds of a step of SFT and of an iteration of RLFT, with the run's real models and rows; nothing of it is kept."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.config.rlft import RLFTSection, Stage
from reflectrl.core import Trajectory
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.rlft import starting_players, trainer_class, training_config
from reflectrl.pipeline.sft import fine_tune
from reflectrl.pipeline.team import Team
from reflectrl.rollout.iteration import Iteration
from reflectrl.training.sft_examples import Player

STEPS = 30
"""Steps of SFT that are timed, without the first third, in which memory is set up."""


def seconds_per_step(recipe: Recipe, run: RunFolder, player: Player) -> float:
    """Return the seconds of an optimizer step of ``player``'s fine-tuning."""
    sections = {name: getattr(recipe.sft, name).model_copy(update={"steps": STEPS}) for name in ("reflector", "policy")}
    short = recipe.model_copy(update={"sft": recipe.sft.model_copy(update=sections)})
    clock: dict[int, float] = {}

    def note(step: int, steps: int, loss: float) -> None:  # noqa: ARG001 - as train_sft calls it
        clock[step] = time.monotonic()

    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        fine_tune(short, run, player, Path(place), note)
    first, last = STEPS // 3, STEPS
    return (clock[last] - clock[first]) / (last - first)


def seconds_per_iteration(recipe: Recipe, run: RunFolder, stage: Stage) -> float:
    """Return the seconds of the second iteration of a stage of RLFT; in the first one, memory is set up."""
    section = recipe.rlft or RLFTSection()
    stages = [replace(stage, iterations=2, success_threshold=None)]
    short = replace(section, stages=stages, validation=None, keep="last")
    clock: list[float] = []

    def note(_: Iteration, __: Sequence[Trajectory]) -> None:
        clock.append(time.monotonic())

    run_players = Team(recipe, run)
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place, RecipeEnvs(recipe, run.path) as envs:
        lm, reflector = starting_players(run_players)
        trainer = trainer_class(section.trainer)(
            lm.model,
            training_config(recipe, short, place),
            lm.tokenizer,
            env=envs,
            seats=run_players.training_seats(reflector, from_start=True),
            layout=run_players.layout,
            labels=run_players.labels,
            on_iteration=note,
            failures=Path(place),
        )
        trainer.train()
    return clock[1] - clock[0]
