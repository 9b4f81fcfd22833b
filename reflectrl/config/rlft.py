"""The recipe's section ``rlft``: the curriculum and the settings of ``ReflectRLTrainer``."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory, nearest
from reflectrl.core.settings import Count, CountOrZero, Fraction, NonNegative, Positive, settings

ENTROPY_RATE = 0.1
"""Power of the ratio of target and entropy with which an iteration multiplies the coefficient."""
ENTROPY_RANGE = 100.0
"""Largest factor between a coefficient that follows a target and its first value."""


@settings()
class Stage:
    """One curriculum stage (section 4.4)."""

    name: str
    """Shown in logs and metrics."""
    iterations: Count
    """Policy updates at most."""
    env: dict[str, Any] = field(default_factory=dict)
    """Environment options that differ from ``env.options`` in this stage."""
    success_threshold: Fraction | None = None
    """Go on early once the mean success of the last ``window`` iterations reaches this."""
    window: Count = 5
    """Iterations over which the threshold looks."""
    replay_threshold: float | None = None
    """Return from which an episode enters the replay buffer; absent: every successful episode."""
    tasks: list[str] = field(default_factory=list)
    """Only training tasks whose id starts with one of these (task order); empty for all."""

    def choose(self, env: NatLangEnv) -> list[Task]:
        """The stage's training tasks.

        Raises:
            InvalidInput: no training task has one of the prefixes.

        """
        tasks = env.split_tasks("train")
        chosen = [task for task in tasks if not self.tasks or task.id.startswith(tuple(self.tasks))]
        if not chosen:
            raise InvalidInput(
                f"stage {self.name!r} asks for tasks that start with {list(self.tasks)}, but environment "
                f"{env.name!r} has none; {nearest(self.tasks[0], [task.id for task in tasks[:20]])}"
            )
        return chosen

    def worth_replaying(self, trajectory: Trajectory) -> bool:
        """Return whether an episode may enter the replay buffer."""
        if self.replay_threshold is None:
            return trajectory.success
        return trajectory.episode_return >= self.replay_threshold


@settings()
class Term:
    """One term of the objective, with a coefficient that changes linearly over the training."""

    coef: NonNegative = 1.0
    """Coefficient at the first update."""
    coef_end: Fraction = 1.0
    """Fraction of the coefficient reached, linearly, at the last update."""

    def at(self, progress: float) -> float:
        """Return the coefficient when the fraction ``progress`` of the updates is done."""
        return self.coef * (1 - (1 - self.coef_end) * progress)


@settings()
class PPOTerm(Term):
    """The clipped surrogate of PPO (appendix A)."""

    epsilon: Positive = 0.2
    """Clip range of the probability ratio."""


@settings()
class EntropyTerm(Term):
    """A bonus for the entropy of the policy, in nats a step."""

    floor: Positive | None = None
    """Nats beyond which a step earns no more: the bonus then acts only where the policy is too sure. Absent: none."""
    target: Positive | None = None
    """Entropy to keep, in nats a step: beginning with ``coef``, the coefficient rises after an iteration whose episodes
    had less and falls after one with more, as the temperature of soft actor-critic (Haarnoja et al., 2018)."""

    def __post_init__(self) -> None:
        """Refuse a target beside a schedule.

        Raises:
            InvalidInput: a target was given with a schedule, or with no coefficient to begin with.

        """
        if self.target is not None and (self.coef == 0 or self.coef_end != 1):
            raise InvalidInput(
                f"entropy has target={self.target:g} with coef={self.coef:g} and coef_end={self.coef_end:g}; expected "
                "a coef above 0, with which the coefficient begins to follow the target, and coef_end: 1.0"
            )

    def follow(self, coef: float, entropy: float) -> float:
        """Return the coefficient after an iteration with ``coef`` whose episodes had ``entropy`` nats a step."""
        if self.target is None:
            return coef
        moved = coef * math.pow(self.target / max(entropy, self.target / ENTROPY_RANGE), ENTROPY_RATE)
        return min(max(moved, self.coef / ENTROPY_RANGE), self.coef * ENTROPY_RANGE)


@settings()
class ValueTerm(Term):
    """The squared error of the value head."""

    clip: Positive | None = None
    """Largest useful change of a value in one iteration, as in PPO's code: a larger one lowers the loss no further."""


@settings()
class ThoughtTerm(Term):
    """Imitation of corrected thoughts, nats a token (GTR, equation 3); actions are never imitated."""

    aggregate: Literal["all", "latest"] = "all"
    """Corrections of the whole run so far (DAgger), or of the present iteration."""
    sample: Literal["corrected", "all"] = "corrected"
    """As many corrections as a minibatch has steps; or as many steps of which those without a correction add nothing,
    so that the weight of the term follows how often a thought is wrong, as in GTR's code."""


@settings()
class Terms:
    """Terms of the objective, which is their weighted sum; absent ones are left out."""

    reinforce: Term | None = None
    """Policy gradient ``-A log pi`` (section 3); the term of a policy without ``ppo``."""
    ppo: PPOTerm | None = None
    """Clipped policy gradient, in place of ``reinforce`` (appendix A)."""
    entropy: EntropyTerm | None = None
    """Bonus for the entropy of the policy."""
    value: ValueTerm | None = None
    """Squared error of the value head; goes together with ``baseline: value``."""
    sft_thought: ThoughtTerm | None = None
    """Imitation of the thoughts of ``players.corrector``, for policies that write before they act."""
    kl: Term | None = None
    """KL divergence of the policy from the one that training began with, in nats a step, exact over the menu; its
    coefficient is TRL's beta. One more forward pass an iteration, and a copy of the trained weights."""

    def __post_init__(self) -> None:
        """Refuse two policy terms.

        Raises:
            InvalidInput: both ``reinforce`` and ``ppo`` were given.

        """
        if self.reinforce and self.ppo:
            raise InvalidInput("terms has both reinforce and ppo; expected one policy term: remove the other")

    @property
    def policy(self) -> Term:
        """The policy term: ``ppo`` or ``reinforce``."""
        return self.ppo or self.reinforce or Term()

    def with_entropy_coef(self, coef: float) -> Terms:
        """Return the same terms with another coefficient of the entropy bonus."""
        return replace(self, entropy=replace(self.entropy or EntropyTerm(), coef=coef))


@settings()
class Validation:
    """Validation while the policy trains: always the same tasks of split ``validation``, with the same seeds."""

    every: Count = 10
    """Iterations from one validation to the next; the last iteration of a stage is validated as well."""
    episodes: Count = 60
    """Sampled episodes of a validation; the tasks are played in turn, in the environment of the stage."""
    greedy: bool = True
    """Also play each of these tasks once with the most probable action."""
    patience: Count | None = None
    """Validations in a row without a new best after which the stage ends; absent: it plays all its iterations."""


@settings(frozen=False)
class RLFTSettings:
    """Settings of ``ReflectRLTrainer``, inherited by ``ReflectRLConfig``; names follow TRL where it has one."""

    stages: Annotated[list[Stage], Field(min_length=1)] = field(default_factory=lambda: [Stage("main", 100)])
    """Curriculum; one stage for none."""
    episodes: Count = 64
    """B, episodes sampled an iteration."""
    episodes_per_task: Count = 1
    """Episodes that start from the same task, a group."""
    task_priority: Fraction = 0.0
    """Fraction of the tasks drawn in proportion to how often they failed lately (prioritized level replay, Jiang et
    al., 2021); the others are drawn evenly."""
    batch_size: Count | None = None
    """Episodes played side by side, each in an environment of its own; absent: all. What is drawn stays the same."""
    learning_rate: Positive = 2e-4
    """Initial learning rate."""
    value_learning_rate: Positive | None = None
    """Initial learning rate of the value head; absent: that of the policy."""
    learning_rate_end: Fraction = 1.0
    """Fraction of the initial learning rate reached at the last update."""
    learning_rate_schedule: Literal["linear", "cosine"] = "linear"
    """Shape of the decrease to ``learning_rate_end``: linear, or half a cosine."""
    weight_decay: NonNegative = 0.001
    """AdamW weight decay."""
    max_grad_norm: NonNegative = 0.3
    """Largest norm of a gradient, longer ones are scaled down to it; 0 clips none."""
    micro_batch_tokens: Count = 2048
    """Tokens a forward pass, padding included; an update always uses all steps of its minibatch."""
    num_iterations: Count = 1
    """Passes over each batch of episodes (mu); more than 1 needs ``terms.ppo``."""
    num_minibatches: Count = 1
    """Optimizer steps a pass."""
    target_kl: Positive | None = None
    """KL divergence of a minibatch, in nats a step, after which an iteration makes no more updates; absent: any."""
    terms: Terms = field(default_factory=Terms)
    """Objective; REINFORCE alone by default."""
    thought_lambda: Fraction = 0.5
    """Weight of the log-probability of what a policy writes before it acts (lambda of RL4VLM, equation 4.3), for
    ``prompt.action_mode`` thought_choice and json, and of a reflection, for ``players.reflector.trained``: 0 trains the
    action alone, 1 every token alike."""
    rewards: Annotated[dict[str, float], Field(min_length=1)] = field(default_factory=lambda: {"env": 1.0})
    """Weight of each source of rewards: ``env``; the role of a player that rates episodes; for policies that write
    before they act, ``format``, which is 1 for each step whose text names a legal action; and for actions in JSON,
    ``illegal``, which is 1 for each step whose text names none, so that its weight is negative."""
    format_into_return: bool = False
    """Add the reward ``format`` to the return and the advantage of its own step alone, as GTR's code does; else it is a
    reward like others, which earlier steps are credited with as well."""
    gamma: Fraction = 1.0
    """Discount of the reward-to-go; the paper has none."""
    baseline: Literal["none", "batch", "leave_one_out", "step_group", "value"] = "batch"
    """Subtracted from the reward-to-go. leave_one_out: the mean return of the other episodes where they read the same
    prompt (whatever ``episodes_per_task`` is), of all their steps where none did. step_group: GiGPO (Feng et al.,
    2025), an episode's return less the mean of its task's episodes, plus a step's reward-to-go less the mean of the
    steps of that task with the same observation."""
    step_group_weight: NonNegative = 1.0
    """Weight (omega) of the second difference of ``baseline: step_group``."""
    gae_lambda: Fraction = 1.0
    """Lambda of GAE, for ``baseline: value``; 1 for reward-to-go minus value."""
    bootstrap_truncated: bool = False
    """Credit an episode that ran out of time with the value of the state in which it stopped, for ``baseline: value``.
    Right where the time limit is no part of the task (Pardo et al., 2018); where it is, and without a discount, the
    policy unlearns to hurry."""
    normalize_advantages: bool = True
    """Divide advantages by their standard deviation (at least 0.2)."""
    center_advantages: bool = False
    """Subtract the mean of the batch's advantages before that; with ``normalize_advantages`` they are whitened."""
    replay_size: CountOrZero = 0
    """Successful episodes of the current stage kept for replay; 0 for none."""
    replay_episodes: CountOrZero = 0
    """Past episodes in each update, learned from as if the present policy had played them: with its present values
    and without importance weights (self-imitation, Oh et al., 2018). They are drawn as tasks are (``task_priority``),
    so that what is being forgotten comes back first."""
    validation: Validation | None = None
    """Validation while training; absent: none, and the validation tasks are never read."""
    keep: Literal["last", "best"] = "last"
    """The weights with which training ends: the last ones, or those of the last stage that did best at a validation, by
    sampled episodes; among equals the latest."""
    ema: Fraction = 0.0
    """Decay an update of averaged weights, which are validated and with which training ends; 0 for the weights as they
    are. The policy plays and learns with its own."""
    save_every: Count = 10
    """Iterations between checkpoints."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            InvalidInput: several updates a batch without a clip range, a value term without a value head or the other
                way round, incomplete groups or groups of one, or the best weights without a validation.

        """
        if self.updates_per_iteration > 1 and self.terms.ppo is None:
            raise InvalidInput("num_iterations or num_minibatches above 1 needs terms.ppo, e.g. ppo: {epsilon: 0.2}")
        if (self.baseline == "value") != (self.terms.value is not None):
            raise InvalidInput(
                f"baseline={self.baseline} was given {'with' if self.terms.value else 'without'} terms.value; expected "
                "both or neither, e.g. baseline: value and value: {coef: 0.5}"
            )
        if self.value_learning_rate is not None and self.baseline != "value":
            raise InvalidInput(f"value_learning_rate={self.value_learning_rate:g} needs baseline: value")
        if self.gae_lambda < 1 and self.baseline != "value":
            raise InvalidInput(f"gae_lambda={self.gae_lambda:g} needs baseline: value")
        if self.bootstrap_truncated and self.baseline != "value":
            raise InvalidInput("bootstrap_truncated needs a value head to estimate with: set baseline: value")
        if self.step_group_weight != 1 and self.baseline != "step_group":
            raise InvalidInput(f"step_group_weight={self.step_group_weight:g} needs baseline: step_group")
        if self.baseline == "step_group" and self.episodes_per_task == 1:
            raise InvalidInput(
                "baseline=step_group was given with episodes_per_task=1; expected at least 2, because it compares "
                "episodes of the same task, e.g. episodes_per_task: 4"
            )
        if self.episodes % self.episodes_per_task:
            raise InvalidInput(
                f"episodes={self.episodes} must be a multiple of episodes_per_task={self.episodes_per_task}"
            )
        if self.format_into_return and "format" not in self.rewards:
            raise InvalidInput("format_into_return needs a weight of the reward, e.g. rewards: {env: 1.0, format: 5.0}")
        if self.keep == "best" and self.validation is None:
            raise InvalidInput("keep: best needs a validation that says which is best, e.g. validation: {every: 10}")

    @property
    def updates_per_iteration(self) -> int:
        """Number of optimizer steps an iteration."""
        return self.num_iterations * self.num_minibatches


@settings(frozen=False)
class RLFTSection(RLFTSettings):
    """Stage 2: online policy gradient (Algorithm 1, lines 23-36)."""

    report_to: Literal["none", "tensorboard", "trackio", "wandb"] = "none"
    """Tracker that the metrics and a few episodes are also sent to; it must be installed."""
    record_episodes: CountOrZero = 8
    """Episodes an iteration written to ``trajectories/``."""

    def __post_init__(self) -> None:
        """Refuse a replay buffer that is never filled or never used.

        Raises:
            InvalidInput: one of its two settings was given alone, or see ``RLFTSettings``.

        """
        super().__post_init__()
        if bool(self.replay_size) != bool(self.replay_episodes):
            raise InvalidInput("replay_size and replay_episodes go together: set both or neither")
