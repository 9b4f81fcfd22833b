"""A ``ReflectRLTrainer`` that plays NumberLine with a tiny model, for the tests of the trainer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel
from tiny import LABELS, LAYOUT, MAX_LENGTH, gpt2, tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.config.advantage import GAE, BatchMean, ValueHead
from reflectrl.config.training import PPO, Lesson, Reinforce, Terms
from reflectrl.core import Trajectory
from reflectrl.core.stop import Stop
from reflectrl.envs.number_line import NumberLine
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.players import Player
from reflectrl.rollout.iteration import Iteration
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.served import PolicyServer
from reflectrl.seats.table import Seat
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.learner import MakeOptimizer, adamw
from reflectrl.training.rlft import ReflectRLTrainer

EXPERT = ExpertReflector()
SIMPLE: dict[str, Any] = {
    "update": Reinforce(),
    "advantage": BatchMean(),
    "terms": Terms(entropy=None),
    "task_priority": 0.0,
    "learning_rate_end": 1.0,
}
"""REINFORCE with the mean of the batch as the baseline, and nothing else."""


class Killed(BaseException):
    """Ends a run as the death of its process would: no checkpoint follows, as it does for an error."""


@dataclass
class Run:
    """A trainer with its metrics and its episodes."""

    trainer: ReflectRLTrainer
    model: PreTrainedModel | PeftModel
    iterations: list[Iteration]
    episodes: list[Sequence[Trajectory]]
    """New episodes of each iteration."""

    def train(self, checkpoint: Path | None = None) -> Run:
        self.trainer.train(checkpoint)
        return self

    @property
    def weights(self) -> dict[str, Tensor]:
        """A copy of all weights, including those of the value head."""
        return {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}


def config(folder: Path, **options: Any) -> ReflectRLConfig:
    defaults: dict[str, Any] = {
        "lessons": [Lesson("main", 2, env={"size": 6})],
        "episodes": 4,
        "learning_rate": 3e-3,
        "max_grad_norm": 1.0,
        "gamma": 0.9,
        "max_length": MAX_LENGTH,
        "use_cpu": True,
        "validation": None,
        "save_total_limit": None,
    }
    return ReflectRLConfig(output_dir=str(folder), disable_tqdm=True, **{**SIMPLE, **defaults, **options})


def ppo(**options: Any) -> PPO:
    """Return PPO that makes one update per iteration, however far it moves, unless ``options`` say otherwise."""
    return PPO(**{"num_iterations": 1, "num_minibatches": 1, "target_kl": None, **options})


def value_head(*, clip: float | None = None, learning_rate: float | None = None, **options: Any) -> GAE:
    """Return an estimator that subtracts the value from the reward-to-go; the value's error trains all layers."""
    head = ValueHead(clip=clip, trunk=True, learning_rate=learning_rate)
    return GAE(**{"gae_lambda": 1.0, "center": False, **options}, value=head)


def run(
    folder: Path,
    model: PreTrainedModel | PeftModel | None = None,
    *,
    reflector: Player | None = EXPERT,
    seats: Sequence[Seat] = (),
    layout: PromptFormat = LAYOUT,
    dies_after: int | None = None,
    env: type[NumberLine] = NumberLine,
    stop: Stop | None = None,
    failures: Path | None = None,
    optimizer: MakeOptimizer = adamw,
    server: PolicyServer | None = None,
    **options: Any,
) -> Run:
    """Return a run that is ready to train; the expert reflects unless another player is given.

    After the iteration ``dies_after``, the run ends with the error ``Killed``.
    """
    model = gpt2() if model is None else model
    iterations: list[Iteration] = []
    fresh: list[Sequence[Trajectory]] = []

    def listen(done: Iteration, episodes: Sequence[Trajectory]) -> None:
        iterations.append(done)
        fresh.append(episodes)
        if done.iteration == dies_after:
            raise Killed

    trainer = ReflectRLTrainer(
        model,
        config(folder, **options),
        tokenizer(),
        env=env,
        reflector=reflector,
        seats=seats,
        layout=layout,
        labels=LABELS,
        on_iteration=listen,
        stop=stop,
        failures=failures,
        optimizer=optimizer,
        server=server,
    )
    return Run(trainer, model, iterations, fresh)
