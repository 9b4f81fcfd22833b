"""``estimate``: how long a recipe will take on this machine, from a short run of every stage with its real models."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reflectrl.config import Recipe
from reflectrl.config.environment import RecipeEnvs
from reflectrl.config.training import Lesson, RLFTSection
from reflectrl.config.trust import asked_endpoints
from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.run_files import STAGES
from reflectrl.core.text import counted
from reflectrl.lm.sequences import state_bytes
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.rlft_stage import starting_players, trainer_class, training_config
from reflectrl.pipeline.sft_stage import fine_tune, wanted_players
from reflectrl.pipeline.stages import run_stages
from reflectrl.pipeline.team import Team
from reflectrl.rollout.iteration import Iteration
from reflectrl.training.sft_examples import Player

STEPS = 30
"""Steps of SFT that are timed, without the first third, in which memory is set up."""


def seconds_per_step(recipe: Recipe, run: RunFolder, player: Player) -> float:
    """Return the seconds of an optimizer step of ``player``'s fine-tuning."""
    sections = {}
    for name in ("reflector", "policy"):
        section = getattr(recipe.sft, name)
        rows = min(STEPS * section.batch_size, section.max_rows or sys.maxsize)
        sections[name] = section.model_copy(update={"steps": STEPS, "max_rows": rows})
    short = recipe.model_copy(update={"sft": recipe.sft.model_copy(update=sections)})
    clock: dict[int, float] = {}

    def note(step: int, steps: int, loss: float) -> None:  # noqa: ARG001 - as train_sft calls it
        clock[step] = time.monotonic()

    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        fine_tune(short, run, player, Path(place), note, check_lengths=False)
    first, last = STEPS // 3, STEPS
    return (clock[last] - clock[first]) / (last - first)


@dataclass(frozen=True)
class Memory:
    """Bytes of a model that is trained by RLFT, without the activations, which ``rlft.micro_batch_tokens`` limits."""

    weights: int
    gradients: int
    optimizer: int
    states: int
    """Keys and values of the prompts that are played side by side."""

    @property
    def text(self) -> str:
        """The sizes in GB, on one line."""
        return ", ".join(f"{name} {size / 1e9:.3g} GB" for name, size in vars(self).items())


def memory_of(model: Any, tokens: int, processes: int = 1) -> Memory:
    """Return the memory in each process that plays ``tokens`` tokens side by side and shards with the others."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return Memory(
        weights=sum(weight.nbytes for weight in model.parameters()),
        gradients=sum(weight.nbytes for weight in trained),
        optimizer=2 * sum(weight.nbytes for weight in trained) // processes,  # AdamW's two moments
        states=tokens * state_bytes(model),
    )


def seconds_per_iteration(recipe: Recipe, run: RunFolder, lesson: Lesson) -> tuple[float, Memory]:
    """Return the seconds of the second iteration of a lesson of RLFT, and the policy's memory.

    In the first iteration, memory is set up.
    """
    section = recipe.rlft or RLFTSection()
    lessons = [replace(lesson, iterations=2, success_threshold=None)]
    short = replace(section, lessons=lessons, validation=None, sharpen=(), keep="last")
    side_by_side = min(section.batch_size or section.episodes, section.episodes)
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
    return clock[1] - clock[0], memory_of(lm.model, side_by_side * recipe.model.max_length)


SAMPLES, EPISODES = 200, 8
"""Number of samples of gen-data, and of episodes of each evaluation, that are timed at most."""


@dataclass(frozen=True)
class StageEstimate:
    """Time of a stage, of a player's training in it, or of a lesson of the curriculum."""

    stage: str
    unit: str
    """What is counted: sample, step, iteration or episode."""
    count: int
    """Number of units at most: SFT and RLFT may end earlier."""
    seconds: float
    """Seconds of a unit."""


@dataclass(frozen=True)
class Estimate:
    """Time of all stages, in order."""

    stages: tuple[StageEstimate, ...]
    memory: Memory | None
    """Memory of the policy in RLFT; ``None`` without RLFT."""

    @property
    def seconds(self) -> float:
        """Seconds of all stages, with the most steps and iterations that the recipe allows."""
        return sum(each.count * each.seconds for each in self.stages)

    @property
    def text(self) -> str:
        """The estimate as a table, with the total below it."""
        lines = [
            f"{each.stage:20}{counted(each.count, each.unit):>18}{1000 * each.seconds:>12,.1f} ms each"
            f"{each.count * each.seconds / 60:>10.1f} min"
            for each in self.stages
        ]
        lines.append(f"at most {self.seconds / 60:.1f} min; SFT and RLFT may reach a plateau earlier")
        if self.memory is not None:
            lines.append(f"memory of the policy in rlft, without activations: {self.memory.text}")
        return "\n".join(lines)


def estimate(recipe: Recipe, reporter: Reporter | None = None) -> Estimate:
    """Time ``SAMPLES`` samples, steps of SFT, an iteration of each lesson of RLFT, and evaluations of few episodes.

    The policy that plays is nearly untrained, so episodes may be longer or shorter than later ones.

    Raises:
        InvalidInput: a stage would ask a chat model, which may cost money, or anything that the stages refuse.
    """
    if asked := [*asked_endpoints(recipe)]:
        raise InvalidInput(
            f"recipe {recipe.name!r} asks chat models ({', '.join(asked)}), which may cost money; estimate it with "
            "other players and another teacher. `reflectrl gen-data --dry-run` says what the teacher's calls cost."
        )
    short = _short(recipe)
    found: list[StageEstimate] = []
    memory: Memory | None = None
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        run = RunFolder(Path(place) / "run")

        def timed(name: str) -> float:
            began = time.monotonic()
            run_stages(short, run.path, [name], reporter=reporter)
            return time.monotonic() - began

        seconds = timed("gen-data")
        found.append(StageEstimate("gen-data", "sample", recipe.data.samples, seconds / short.data.samples))
        for player in wanted_players(recipe):
            trained = recipe.sft.reflector if player == "reflector" else recipe.sft.policy
            each = seconds_per_step(short, run, player)
            found.append(StageEstimate(f"sft {player}", "step", trained.steps, each))
        timed("sft")
        for part in [] if recipe.rlft is None else recipe.rlft.lessons:
            each, memory = seconds_per_iteration(recipe, run, part)
            found.append(StageEstimate(f"rlft {part.name}", "iteration", part.iterations, each))
        timed("rlft")
        each = timed("eval") / short.eval.episodes
        found.append(StageEstimate(STAGES[-1], "episode", recipe.eval.episodes, each))
    return Estimate(tuple(found), memory)


def _short(recipe: Recipe) -> Recipe:
    sections = {name: getattr(recipe.sft, name).model_copy(update={"steps": 1}) for name in ("reflector", "policy")}
    rlft = recipe.rlft
    if rlft is not None:
        lessons = [replace(lesson, iterations=1, success_threshold=None) for lesson in rlft.lessons]
        rlft = replace(rlft, lessons=lessons, validation=None, sharpen=(), keep="last")
    return recipe.model_copy(
        update={
            "budget": None,
            "data": recipe.data.model_copy(update={"samples": min(recipe.data.samples, SAMPLES)}),
            "sft": recipe.sft.model_copy(update=sections),
            "rlft": rlft,
            "eval": recipe.eval.model_copy(update={"episodes": min(recipe.eval.episodes, EPISODES)}),
        }
    )
