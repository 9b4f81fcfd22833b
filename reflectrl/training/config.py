"""``ReflectRLConfig``: TRL-style arguments of ``ReflectRLTrainer``."""

from __future__ import annotations

from dataclasses import dataclass, field

from accelerate.utils import parse_flag_from_env
from trl.trainer.base_config import _BaseConfig  # private in trl 1.x: with rlft.py the only importers

from reflectrl.core import InvalidInput
from reflectrl.training.curriculum import Stage

BASELINES = ("none", "batch", "leave_one_out", "value")


@dataclass
class ReflectRLConfig(_BaseConfig):
    """Arguments of one RLFT run; names follow TRL where it has one.

    The number of optimizer steps and when to save and log follow from the stages: training is counted in iterations
    (one batch of fresh episodes), each ``num_iterations * num_minibatches`` optimizer steps, and checkpoints fall
    between iterations, where the rollout buffer is empty.
    """

    bf16: bool | None = False
    stages: list[Stage] = field(default_factory=lambda: [Stage("main", 100)])
    """Curriculum, in order."""
    episodes: int = 64
    """Episodes an iteration, on each process."""
    episodes_per_task: int = 1
    """Episodes that start from the same task."""
    batch_size: int | None = None
    """Episodes played side by side, each in an environment of its own; ``None`` for all of them."""
    num_iterations: int = 1
    """Passes over a batch of episodes."""
    num_minibatches: int = 1
    """Optimizer steps a pass."""
    micro_batch_tokens: int = 2048
    """Tokens a forward pass of an update, padding included."""
    prefix_reuse: bool = True
    """Compute what prompts share once, where the model can: in slots at play, in prefix trees at updates."""
    epsilon: float | None = None
    """PPO clip range; ``None`` for REINFORCE."""
    gamma: float = 1.0
    """Discount of the reward-to-go."""
    baseline: str = "batch"
    """One of ``BASELINES``."""
    value_coef: float = 0.5
    """Weight of the value error, with ``baseline="value"``."""
    normalize_advantages: bool = True
    """Divide advantages by their standard deviation."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus at the start."""
    entropy_coef_end: float = 1.0
    """Fraction of it reached, linearly, at the end."""
    learning_rate_end: float = 1.0
    """Fraction of ``learning_rate`` reached, linearly, at the end."""
    replay_size: int = 0
    """Worthwhile episodes of the current stage kept."""
    replay_episodes: int = 0
    """Kept episodes replayed an iteration."""
    save_every: int = 10
    """Iterations between checkpoints."""

    def __post_init__(self) -> None:
        """Derive Trainer's step counts.

        Raises:
            InvalidInput: unknown baseline, incomplete groups, several updates a batch without a clip range, or a model
                divided over processes.

        """
        sharded = {
            "FSDP": self.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP"),
            "DeepSpeed": self.deepspeed or parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"),
        }
        for name in (name for name, asked in sharded.items() if asked):
            raise InvalidInput(
                f"{name} was asked for, but each process plays at its own pace and so needs the whole model; start "
                "with torchrun alone, and use LoRA on a quantised base (model.quantization) where memory is short."
            )
        if self.baseline not in BASELINES:
            raise InvalidInput(f"baseline {self.baseline!r} is unknown; known: {', '.join(BASELINES)}.")
        if self.episodes_per_task < 1 or self.episodes < 1 or self.episodes % self.episodes_per_task:
            raise InvalidInput(
                f"episodes={self.episodes} with episodes_per_task={self.episodes_per_task}; expected a whole number of "
                "groups: make the first a multiple of the second."
            )
        if self.updates_per_iteration > 1 and self.epsilon is None:
            raise InvalidInput("several updates on one batch of episodes need a clip range; set epsilon, e.g. 0.2.")
        self.max_steps = sum(stage.iterations for stage in self.stages) * self.updates_per_iteration
        self.save_strategy, self.save_steps = "steps", self.save_every * self.updates_per_iteration
        self.logging_strategy, self.logging_steps = "steps", self.updates_per_iteration
        self.per_device_train_batch_size, self.gradient_accumulation_steps = 1, 1
        self.remove_unused_columns = False
        # TRL turns it on, by its old name; here the backward pass covers one token a row
        self.gradient_checkpointing = self.activation_checkpointing = False
        super().__post_init__()

    @property
    def updates_per_iteration(self) -> int:
        """Optimizer steps an iteration."""
        return self.num_iterations * self.num_minibatches
