"""``Iteration`` and ``Throughput``: the records of one iteration of RLFT, the lines of two files of a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reflectrl.rollout.metrics import EpisodeMeans, metric


@dataclass(frozen=True, kw_only=True)
class IterationPlace:
    """Position of an iteration in the curriculum."""

    iteration: int
    """Number of the iteration, from 0."""
    stage: str
    """Name of the stage of the curriculum."""


@dataclass(frozen=True, kw_only=True)
class Iteration(EpisodeMeans, IterationPlace):
    """Measurements of one iteration: equal for equal recipe and seed, however often the run was interrupted."""

    success_by_group: Mapping[str, float]
    """Success rate of the fresh episodes by group of tasks; empty where the environment names none."""
    loss: float = metric("update/loss", "Loss", panel=True, late=True)
    """Mean over the updates of the iteration."""
    kl: float = metric("update/kl", "KL divergence", panel=True, late=True)
    """KL divergence of the sampling policy from the updated one, mean over steps and updates."""
    clipped: float = metric("update/clipped", "Clipped steps", fraction=True, panel=True, late=True)
    """Fraction of steps outside the clip range."""
    grad_norm: float = metric("update/grad_norm", "Gradient norm", low=0.0, panel=True, late=True)
    """Norm of the gradient before it is clipped, mean over the updates."""
    learning_rate: float = metric("update/learning_rate", "Learning rate", low=0.0, panel=True, late=True)
    """Learning rate of the policy at the last update."""
    logprob_gap: float = metric("update/logprob_gap", "Gap of log-probabilities", low=0.0, late=True)
    """Mean distance in nats of the log-probabilities at play from those of the first minibatch, before any update."""
    entropy_coef: float | None = metric("update/entropy_coef", "Entropy coefficient", low=0.0, panel=True, late=True)
    """Coefficient of an entropy bonus with a target; ``None`` for one with a schedule."""
    memory_hits: float | None = metric(
        "rollout/memory_hits", "Steps with something remembered", fraction=True, panel=True, late=True, default=None
    )
    """Fraction of the steps at which the memory showed something; ``None`` without one."""
    thought_tokens: float | None = metric(
        "rollout/thought_tokens", "Tokens written a step", low=0.0, panel=True, late=True, default=None
    )
    """Mean number of tokens that the policy wrote before it acted; ``None``, like the next seven, without any."""
    thought_distinct: float | None = metric(
        "rollout/thought_distinct", "Distinct thoughts", fraction=True, panel=True, late=True, default=None
    )
    """Number of different thoughts as a fraction of all of the iteration."""
    thought_repeated: float | None = metric(
        "rollout/thought_repeated", "Repeated thoughts", fraction=True, late=True, default=None
    )
    """Fraction of the steps with the thought of the step before."""
    thought_bleu: float | None = metric(
        "rollout/thought_bleu", "Self-BLEU of thoughts", fraction=True, panel=True, late=True, default=None
    )
    """Mean BLEU-2 of a thought against the others: 1 where all are the same."""
    thought_templates: float | None = metric(
        "rollout/thought_templates",
        "Distinct templates",
        fraction=True,
        panel=True,
        late=True,
        default=None,
    )
    """Number of different thoughts, with numbers and names masked, as a fraction of all of the iteration."""
    thought_misread: float | None = metric(
        "rollout/thought_misread", "Misread states", fraction=True, panel=True, late=True, default=None
    )
    """Fraction of the thoughts that misread the state; ``None`` where the environment cannot tell."""
    thought_consistent: float | None = metric(
        "rollout/thought_consistent", "Consistent thoughts", fraction=True, panel=True, late=True, default=None
    )
    """Fraction of the thoughts before the action that they call for, of those that call for one."""
    thought_corrected: float | None = metric(
        "rollout/thought_corrected", "Corrected thoughts", fraction=True, panel=True, late=True, default=None
    )
    """Fraction of the thoughts that a corrector rewrote; ``None`` without one."""
    thought_kl: float | None = metric(
        "update/thought_kl", "KL divergence of thoughts", panel=True, late=True, default=None
    )
    """KL divergence as ``kl``, of what is written alone, unweighted; ``None``, like the next one, without any."""
    action_kl: float | None = metric(
        "update/action_kl", "KL divergence of actions", panel=True, late=True, default=None
    )
    """KL divergence as ``kl``, of the action after the text alone."""
    replayed: int = metric("rollout/replayed", late=True)
    """Episodes from the replay buffer."""
    validation_success: float | None = metric(
        "rollout/validation_success", "Validation success", fraction=True, panel=True, late=True
    )
    """Fraction of the sampled validation episodes that succeeded after the updates; ``None`` where none were played."""
    validation_greedy: float | None = metric(
        "rollout/validation_greedy", "Greedy validation success", fraction=True, panel=True, late=True
    )
    """Fraction of the validation tasks that succeed with the most probable actions."""
    validation_by_group: Mapping[str, float]
    """Success rate of the sampled validation episodes by group of tasks; empty where there are none."""
    env_steps: int = metric("rollout/env_steps")
    """Environment steps since the start of training, over all processes."""

    @property
    def by_group(self) -> dict[str, float]:
        """The success rates of groups of tasks, by field and group, such as ``validation_success/red``."""
        rates = {"success": self.success_by_group, "validation_success": self.validation_by_group}
        return {f"{field}/{group}": rate for field, groups in rates.items() for group, rate in groups.items()}


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Speed of one iteration; it differs from run to run."""

    iteration: int
    """Number of the iteration, from 0."""
    seconds: float = metric("speed/seconds")
    """Wall seconds."""
    steps_per_second: float = metric("speed/steps_per_second", "Environment steps a second", panel=True, late=True)
    reflection_hit_rate: float = metric(
        "speed/reflection_hit_rate", "Reflections from the cache", fraction=True, panel=True
    )
    """Fraction of reflections that the cache had, since the process began."""
    prompt_reuse: float = metric("speed/prompt_reuse", late=True)
    """Fraction of prompt tokens whose keys and values were computed before."""
    env_failures: int = metric("speed/env_failures", late=True)
    """Episodes that the environment broke off."""
    env_recycled: int = metric("speed/env_recycled", late=True)
    """Environments that were replaced."""
