"""``RLFTCheckpoints``: the state in a checkpoint of RLFT besides policy and optimizer."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn

from reflectrl.config.rlft import NOVELTY
from reflectrl.core import Trajectory
from reflectrl.core.jsonl import decode, encode
from reflectrl.prompts.players import Remembers
from reflectrl.rollout.image_files import with_images, without_images
from reflectrl.rollout.record import HOLDERS
from reflectrl.training.checkpoints import Checkpoints
from reflectrl.training.curriculum import Curriculum
from reflectrl.training.rewards import Novelty, RewardScale
from reflectrl.training.thoughts import Imitation
from reflectrl.training.validation import Validator
from reflectrl.training.weights import Weights

STATE_NAME = "reflectrl_state_{rank}.json"
VALUE_HEAD_NAME = "value_head.safetensors"
AVERAGE_NAME = "average.safetensors"
VISITS_NAME = "visits.safetensors"


class RLFTCheckpoints(Checkpoints):
    """Mixin that saves and restores the progress of ``ReflectRLTrainer``."""

    curriculum: Curriculum
    replay: deque[Trajectory]
    iteration: int
    env_steps: int
    entropy_coef: float | None
    imitation: Imitation
    learners: Sequence[Remembers]
    novelty: Novelty
    reward_scale: RewardScale
    _value_head: nn.Module | None
    _validator: Validator | None
    _averaged_weights: Weights | None

    def write_state(self, folder: Path) -> None:
        """Save the state of this process (iteration, curriculum, replay buffer) and the weights that all share."""
        if self._value_head is not None and self.is_world_process_zero():
            save_file(self._value_head.state_dict(), folder / VALUE_HEAD_NAME)
        if self._averaged_weights is not None and self.is_world_process_zero():
            save_file(dict(self._averaged_weights), folder / AVERAGE_NAME)
        if NOVELTY in self.args.rewards and self.is_world_process_zero():
            save_file({"counts": self.novelty.counts}, folder / VISITS_NAME)
        path = folder / STATE_NAME.format(rank=self.args.process_index)
        state = {
            "iteration": self.iteration,
            "env_steps": self.env_steps,
            "entropy_coef": self.entropy_coef,
            "stage": self.curriculum.index,
            "ended": self.curriculum.ended,
            "successes": self.curriculum.successes,
            "failures": self.curriculum.failures,
            "replay": encode(without_images(tuple(self.replay), path, HOLDERS)),
            "thoughts": self.imitation.state(path),
            "returns": self.reward_scale.moments,
            "memories": [player.remembered for player in self.learners],
        }
        if self._validator is not None:
            state["validation"] = self._validator.write_state(folder)
        path.write_text(json.dumps(state), encoding="utf-8")

    def read_state(self, folder: Path) -> None:
        """Restore the state that ``write_state`` saved.

        Raises:
            InvalidInput: a stage that has ended has another name or length now.

        """
        if self._value_head is not None:
            self._value_head.load_state_dict(load_file(folder / VALUE_HEAD_NAME))
        if self._averaged_weights is not None:
            self._averaged_weights = load_file(folder / AVERAGE_NAME, str(self.args.device))
        if NOVELTY in self.args.rewards:
            self.novelty.counts = load_file(folder / VISITS_NAME)["counts"]
        path = folder / STATE_NAME.format(rank=self.args.process_index)
        state = json.loads(path.read_text(encoding="utf-8"))
        self.iteration, self.env_steps = state["iteration"], state["env_steps"]
        self.entropy_coef = state["entropy_coef"]
        self.curriculum.index, self.curriculum.successes = state["stage"], state["successes"]
        self.curriculum.failures = state["failures"]
        self.curriculum.check_ended(state.get("ended"), folder)  # older versions did not save it
        count, mean, squares = state.get("returns", self.reward_scale.moments)  # older versions did not save it
        self.reward_scale.moments = (count, mean, squares)
        rows = with_images(state["replay"], path, str(path), HOLDERS)
        self.replay.extend(decode(Trajectory, row, str(path)) for row in rows)
        self.imitation.restore(state["thoughts"], path)
        for player, remembered in zip(self.learners, state.get("memories", ()), strict=True):  # older versions had none
            player.restore(remembered)
        if self._validator is not None:
            self._validator.read_state(folder, state["validation"])


def checkpoint_iteration(checkpoint: Path) -> int:
    """Return the number of iterations that were done when ``checkpoint`` was written."""
    return int(json.loads((checkpoint / STATE_NAME.format(rank=0)).read_text())["iteration"])
