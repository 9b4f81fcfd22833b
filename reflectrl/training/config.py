"""``ReflectRLConfig``: TRL-style arguments of ``ReflectRLTrainer``."""

from __future__ import annotations

from dataclasses import dataclass, fields

from accelerate.utils import parse_flag_from_env
from trl.trainer.base_config import _BaseConfig  # private in trl 1.x: with rlft.py the only importers

from reflectrl.config.rlft import RLFTSettings
from reflectrl.core import InvalidInput


@dataclass
class ReflectRLConfig(RLFTSettings, _BaseConfig):
    """Arguments of one RLFT run: the fields of ``RLFTSettings``, and those of ``transformers.TrainingArguments``.

    The number of optimizer steps and the steps of logs and checkpoints follow from the stages: training is counted in
    iterations (one batch of fresh episodes) of ``num_iterations * num_minibatches`` optimizer steps, and checkpoints
    are written between iterations, where the rollout buffer is empty.
    """

    bf16: bool | None = False
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
            InvalidInput: settings are out of range or contradict each other, or the model is sharded over processes.

        """
        RLFTSettings(**{each.name: getattr(self, each.name) for each in fields(RLFTSettings)})
        sharded = {
            "FSDP": self.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP"),
            "DeepSpeed": self.deepspeed or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"),
        }
        for name in (name for name, asked in sharded.items() if asked):
            raise InvalidInput(
                f"{name} was asked for, but each process plays at its own pace and so needs the whole model; start "
                "with torchrun alone, and use LoRA on a quantised base (model.quantization) where memory is short."
            )
        self.max_steps = sum(stage.iterations for stage in self.stages) * self.updates_per_iteration
        self.save_strategy, self.save_steps = "steps", self.save_every * self.updates_per_iteration
        self.logging_strategy, self.logging_steps = "steps", self.updates_per_iteration
        self.per_device_train_batch_size, self.gradient_accumulation_steps = 1, 1
        self.remove_unused_columns = False
        # TRL turns it on, by its old name; here the loss covers one token per row
        self.gradient_checkpointing = self.activation_checkpointing = False
        _BaseConfig.__post_init__(self)  # super() would be RLFTSettings
