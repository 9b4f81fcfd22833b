"""A ``ReflectRLTrainer`` that plays NumberLine with a tiny model: what the tests of the trainer share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peft import PeftModel
from tiny import LAYOUT, encoder, gpt2, tokenizer
from torch import Tensor
from transformers import PreTrainedModel

from reflectrl.core import Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.players import ExpertReflector, Reflector
from reflectrl.prompts import PromptFormat
from reflectrl.training.config import ReflectRLConfig
from reflectrl.training.curriculum import Stage
from reflectrl.training.rlft import Iteration, ReflectRLTrainer


@dataclass
class Run:
    """A trainer and what it tells as it goes."""

    trainer: ReflectRLTrainer
    model: PreTrainedModel | PeftModel
    iterations: list[Iteration] = field(default_factory=list)
    episodes: list[Sequence[Trajectory]] = field(default_factory=list)

    def listen(self, done: Iteration, episodes: Sequence[Trajectory]) -> None:
        self.iterations.append(done)
        self.episodes.append(episodes)

    def train(self, checkpoint: Path | None = None) -> Run:
        self.trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        return self

    @property
    def weights(self) -> dict[str, Tensor]:
        """A copy of all weights, the value head's included."""
        return {name: weight.detach().clone() for name, weight in self.model.state_dict().items()}


def config(folder: Path, **options: Any) -> ReflectRLConfig:
    defaults: dict[str, Any] = {
        "stages": [Stage("main", 2, env={"size": 6})],
        "episodes": 4,
        "learning_rate": 3e-3,
        "max_grad_norm": 1.0,
        "gamma": 0.9,
    }
    return ReflectRLConfig(output_dir=str(folder), use_cpu=True, disable_tqdm=True, **{**defaults, **options})


def run(
    folder: Path,
    model: PreTrainedModel | PeftModel | None = None,
    *,
    reflector: Reflector | None = None,
    layout: PromptFormat = LAYOUT,
    **options: Any,
) -> Run:
    """A run that is ready to train; the expert reflects unless somebody else does."""
    model = gpt2() if model is None else model
    listener = Run.__new__(Run)
    trainer = ReflectRLTrainer(
        model,
        config(folder, **options),
        tokenizer(),
        encoder=encoder(),
        env_factory=lambda given: NumberLine(**given),
        layout=layout,
        reflector=ExpertReflector() if reflector is None else reflector,
        on_iteration=lambda done, episodes: listener.listen(done, episodes),
    )
    listener.__init__(trainer, model)
    return listener
