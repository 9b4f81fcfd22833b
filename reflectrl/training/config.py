"""``ReflectRLConfig``: TRL-style arguments of ``ReflectRLTrainer``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from accelerate.utils import parse_flag_from_env
from trl.trainer.base_config import _BaseConfig  # private in trl 1.x: with rlft.py the only importers

from reflectrl.config.rlft import RLFTSettings
from reflectrl.core import InvalidInput
from reflectrl.core.jsonl import encode

_FROM_STAGES = "training is counted in iterations; set stages=[Stage('main', iterations=...)]"
_MINIBATCHES = "a training step is one minibatch of an iteration; set episodes, update or micro_batch_tokens"
_LOGS = "each iteration is logged; leave it out"
_SAVES = "checkpoints are written between iterations; set save_every"
_RATES = "the learning rate follows from the settings learning_rate, learning_rate_end and learning_rate_schedule"
_MEMORY = "the loss covers one token per row; where memory is short, lower micro_batch_tokens"
_FLOAT16 = "its loss scale is not in checkpoints; leave it out, or set bf16"
_NOT_READ: Mapping[str, str] = {
    "max_steps": _FROM_STAGES,
    "num_train_epochs": _FROM_STAGES,
    "per_device_train_batch_size": _MINIBATCHES,
    "gradient_accumulation_steps": _MINIBATCHES,
    "logging_strategy": _LOGS,
    "logging_steps": _LOGS,
    "save_strategy": _SAVES,
    "save_steps": _SAVES,
    "lr_scheduler_type": _RATES,
    "lr_scheduler_kwargs": _RATES,
    "warmup_steps": _RATES,
    "gradient_checkpointing": _MEMORY,
    "activation_checkpointing": _MEMORY,
    "fp16": _FLOAT16,
    "label_smoothing_factor": "the loss has no labels; leave it out",
    "neftune_noise_alpha": "the model is in evaluation mode, as in sampling; leave it out",
    "eval_strategy": "episodes are played instead; set validation",
    "load_best_model_at_end": "episodes are played instead; set validation and keep",
    "save_only_model": "checkpoints are whole, so that training can resume; leave it out",
}
"""Arguments of ``TrainingArguments`` that are refused, and what decides in their place."""


class _Derived(int):
    """A number of steps that follows from the stages; a copy of a config is made with it."""


@dataclass
class ReflectRLConfig(RLFTSettings, _BaseConfig):
    """Arguments of one RLFT run: the fields of ``RLFTSettings``, and those of ``transformers.TrainingArguments``.

    The number of optimizer steps and the steps of logs and checkpoints follow from the stages: training is counted in
    iterations (one batch of fresh episodes) of ``update.num_iterations * update.num_minibatches`` optimizer steps, and
    checkpoints are written between iterations, where the rollout buffer is empty. Arguments of Trainer that would
    contradict this are refused.
    """

    bf16: bool | None = False
    gradient_checkpointing: bool = False
    max_length: int = 1024
    """Maximum length of a prompt of the policy, in tokens; longer prompts are cut."""
    max_completion_length: int = 64
    """Maximum length of the text of a policy that writes before it acts, in tokens."""
    temperature: float = 1.0
    """Temperature at which the policy's text is sampled and scored."""
    max_reflection_length: int = 100
    """Maximum length of a reflection by a model that is also trained as the reflector, in tokens."""
    reflection_temperature: float = 1.0
    """Temperature at which a trained reflector's texts are sampled and scored."""
    prefix_reuse: bool = True
    """Compute shared beginnings of prompts once, if the model allows it: with a prefix cache in rollouts and prefix
    trees in updates."""

    def __post_init__(self) -> None:
        """Check the settings, and derive Trainer's step counts.

        Raises:
            InvalidInput: settings are out of range or contradict each other, an argument of Trainer would have no
                effect, or the model is sharded over processes.

        """
        checked = RLFTSettings(**{each.name: getattr(self, each.name) for each in fields(RLFTSettings)})
        for each in fields(RLFTSettings):
            setattr(self, each.name, getattr(checked, each.name))  # converted, for example from plain dictionaries
        updates = self.updates_per_iteration
        derived: dict[str, Any] = {
            "max_steps": _Derived(sum(stage.iterations for stage in self.stages) * updates),
            "save_steps": _Derived(self.save_every * updates),
            "logging_steps": _Derived(updates),
            "per_device_train_batch_size": 1,
            "activation_checkpointing": False,
        }
        defaults = {each.name: each.default for each in fields(self)}
        for name, decides in _NOT_READ.items():
            given = getattr(self, name)
            if given not in (defaults[name], derived.get(name)) and not isinstance(given, _Derived):
                raise InvalidInput(f"{name}={given} was given, but {decides}.")
        sharded = {
            "FSDP": self.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP"),
            "DeepSpeed": self.deepspeed or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"),
        }
        for name in (name for name, asked in sharded.items() if asked):
            raise InvalidInput(
                f"{name} was asked for, but each process plays at its own pace and so needs the whole model; start "
                "with torchrun alone, and use LoRA on a quantised base (model.quantization) where memory is short."
            )
        for name, value in derived.items():
            setattr(self, name, value)
        self.remove_unused_columns = False
        _BaseConfig.__post_init__(self)  # super() would be RLFTSettings
        self.save_steps, self.logging_steps = derived["save_steps"], derived["logging_steps"]  # now plain numbers
        self._n_gpu = min(1, self.n_gpu)  # else Trainer divides the rows between the GPUs that this process sees

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments as plain values, which trackers need."""
        plain: dict[str, Any] = _BaseConfig.to_dict(self)
        return {**plain, **{each.name: encode(getattr(self, each.name)) for each in fields(RLFTSettings)}}
