"""``ReflectRLConfig``: the arguments of ``ReflectRLTrainer``."""

from __future__ import annotations

from reflectrl.config.training import RLFTSettings
from reflectrl.core.settings import Count, NonNegative, Positive, settings


@settings()
class ReflectRLConfig(RLFTSettings):
    """Arguments of one RLFT run: the fields of ``RLFTSettings``, and what a recipe states elsewhere.

    Training is counted in iterations (one batch of fresh episodes) of ``updates_per_iteration`` optimizer steps.
    Checkpoints are written between iterations. Without ``bf16``, the precision is the one that
    ``accelerate launch`` was asked for.
    """

    output_dir: str = "reflectrl-rlft"
    """Folder of the checkpoints."""
    seed: int = 42
    """Seed of every draw."""
    max_length: Count = 1024
    """Maximum length of a prompt of the policy, in tokens; longer prompts are cut."""
    max_completion_length: Count = 64
    """Maximum length of the text of a policy that writes before it acts, in tokens."""
    temperature: Positive = 1.0
    """Temperature at which the policy's text is sampled and scored."""
    max_reflection_length: Count = 100
    """Maximum length of a reflection by a model that is also trained as the reflector, in tokens."""
    reflection_temperature: NonNegative = 1.0
    """Temperature at which a trained reflector's texts are sampled and scored."""
    prefix_reuse: bool = True
    """Compute shared beginnings of prompts once, if the model allows it: with a prefix cache in rollouts and prefix
    trees in updates."""
    bf16: bool = False
    """Train in bfloat16 by autocast."""
    use_cpu: bool = False
    """Train on the CPU although there is a GPU."""
    save_total_limit: Count | None = 2
    """Number of checkpoints that are kept; null: all."""
    disable_tqdm: bool = False
    """Show no progress bar, which is shown in terminals only."""
