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

    The number of optimizer steps and when to save and log follow from the stages: training is counted in iterations
    (one batch of fresh episodes), each ``num_iterations * num_minibatches`` optimizer steps, and checkpoints fall
    between iterations, where the rollout buffer is empty.
    """

    bf16: bool | None = False
    max_length: int = 1024
    """Longest prompt of the policy, in tokens; longer ones are cut."""
    max_completion_length: int = 64
    """Longest text of a policy that writes before it acts, in tokens."""
    temperature: float = 1.0
    """Temperature at which that text is sampled and scored."""
    max_reflection_length: int = 100
    """Longest reflection of a model that is trained to reflect as well, in tokens."""
    reflection_temperature: float = 1.0
    """Temperature at which such reflections are sampled and scored."""
    prefix_reuse: bool = True
    """Compute what prompts share once, where the model can: by a prefix cache at play, in prefix trees at updates."""

    def __post_init__(self) -> None:
        """Check the settings, and derive Trainer's step counts.

        Raises:
            InvalidInput: settings out of range or that contradict each other, or a model divided over processes.

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
        # TRL turns it on, by its old name; here the backward pass covers one token a row
        self.gradient_checkpointing = self.activation_checkpointing = False
        _BaseConfig.__post_init__(self)  # super() would be RLFTSettings
