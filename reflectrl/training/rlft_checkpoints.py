"""The state of ``ReflectRLTrainer`` in a checkpoint, besides weights and optimizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from reflectrl.config.rlft import NOVELTY
from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode, encode
from reflectrl.rollout.image_files import with_images, without_images
from reflectrl.rollout.record import HOLDERS

if TYPE_CHECKING:
    from reflectrl.training.rlft import ReflectRLTrainer

STATE_NAME = "reflectrl_state_{rank}.json"
VALUE_HEAD_NAME = "value_head.safetensors"
VISITS_NAME = "visits.safetensors"


def write_state(trainer: ReflectRLTrainer, folder: Path) -> None:
    """Save the state of this process (iteration, curriculum, replay buffer), and what all processes share."""
    if trainer.accelerator.is_main_process:
        if trainer.value_head is not None:
            save_file(trainer.value_head.state_dict(), folder / VALUE_HEAD_NAME)
        if NOVELTY in trainer.args.rewards:
            save_file({"counts": trainer.novelty.counts}, folder / VISITS_NAME)
    path = folder / STATE_NAME.format(rank=trainer.accelerator.process_index)
    curriculum = trainer.curriculum
    state = {
        "iteration": trainer.iteration,
        "env_steps": trainer.env_steps,
        "entropy_coef": trainer.entropy_coef,
        "stage": curriculum.index,
        "ended": curriculum.ended,
        "successes": curriculum.successes,
        "failures": curriculum.failures,
        "replay": encode(without_images(tuple(trainer.replay), path, HOLDERS)),
        "thoughts": trainer.imitation.state(path),
        "returns": trainer.reward_scale.moments,
        "memories": [player.remembered for player in trainer.learners],
    }
    if trainer.validator is not None:
        state["validation"] = trainer.validator.write_state(folder)
    path.write_text(json.dumps(state), encoding="utf-8")


def read_state(trainer: ReflectRLTrainer, folder: Path) -> None:
    """Restore what ``write_state`` saved.

    Raises:
        InvalidInput: a stage that has ended has another name or length now.

    """
    if trainer.value_head is not None:
        trainer.value_head.load_state_dict(load_file(folder / VALUE_HEAD_NAME))
    if NOVELTY in trainer.args.rewards:
        trainer.novelty.counts = load_file(folder / VISITS_NAME)["counts"]
    path = folder / STATE_NAME.format(rank=trainer.accelerator.process_index)
    state = json.loads(path.read_text(encoding="utf-8"))
    trainer.iteration, trainer.env_steps = state["iteration"], state["env_steps"]
    trainer.entropy_coef = state["entropy_coef"]
    curriculum = trainer.curriculum
    curriculum.index, curriculum.successes = state["stage"], state["successes"]
    curriculum.failures = state["failures"]
    curriculum.check_ended(state["ended"], folder)
    count, mean, squares = state["returns"]
    trainer.reward_scale.moments = (count, mean, squares)
    rows = with_images(state["replay"], path, str(path), HOLDERS)
    trainer.replay.extend(decode(Trajectory, row, str(path)) for row in rows)
    trainer.imitation.restore(state["thoughts"], path)
    for player, remembered in zip(trainer.learners, state["memories"], strict=True):
        player.restore(remembered)
    if trainer.validator is not None:
        trainer.validator.read_state(folder, state["validation"])


def checkpoint_iteration(checkpoint: Path) -> int:
    """Return the number of iterations that were done when ``checkpoint`` was written."""
    return int(json.loads((checkpoint / STATE_NAME.format(rank=0)).read_text())["iteration"])
