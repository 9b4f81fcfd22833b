"""The recipe's section ``rlft``: the curriculum and the settings of ``ReflectRLTrainer``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from reflectrl.config.advantage import GAE, Advantage, EpisodeGroup, StepGroup, ValueHead
from reflectrl.core import InvalidInput, NatLangEnv, Task, Trajectory, nearest
from reflectrl.core.settings import Count, CountOrZero, Fraction, NonNegative, Positive, settings
from reflectrl.core.text import counted
from reflectrl.prompts.format import THOUGHTS, WRITTEN_ACTIONS, ActionMode

ENTROPY_RATE = 0.1
"""Exponent of the update of the entropy coefficient, ``coef *= (target / entropy) ** ENTROPY_RATE``."""
ENTROPY_RANGE = 100.0
"""Maximum factor by which an entropy coefficient with a target may differ from its first value."""
TEXT_REWARDS: Mapping[str, tuple[ActionMode, ...]] = {
    "format": ("thought_choice", *WRITTEN_ACTIONS),
    "illegal": WRITTEN_ACTIONS,
}
"""Sources of rewards for what a policy writes, and the action modes that have them."""
NOVELTY = "novelty"
"""Source of the rewards for reaching rare states, which the trainer gives."""


@settings()
class Lesson:
    """A lesson of the curriculum (section 4.4)."""

    name: str
    """Name of the lesson in logs and metrics."""
    iterations: Count
    """Maximum number of iterations."""
    env: dict[str, Any] = field(default_factory=dict)
    """Environment options that differ from ``env.options`` in this lesson."""
    success_threshold: Fraction | None = None
    """Mean success rate on the lesson's tasks in the last ``window`` iterations at which the lesson ends early,
    whatever ``task_priority`` draws; absent: it never does."""
    window: Count = 5
    """Number of iterations over which ``success_threshold`` averages."""
    replay_threshold: float | None = None
    """Minimum return of episodes that enter the replay buffer; absent: every successful episode enters."""
    tasks: list[str] = field(default_factory=list)
    """Prefixes of task ids; the lesson uses the training tasks that have one of them (task order), all if empty."""

    def choose(self, env: NatLangEnv) -> list[Task]:
        """Return the lesson's training tasks.

        Raises:
            InvalidInput: no training task has one of the prefixes.
        """
        tasks = env.split_tasks("train")
        chosen = [task for task in tasks if not self.tasks or task.id.startswith(tuple(self.tasks))]
        if not chosen:
            raise InvalidInput(
                f"lesson {self.name!r} asks for tasks that start with {list(self.tasks)}, but environment "
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
    """Coefficient after the last update as a fraction of ``coef``; it changes linearly with the updates of all lessons,
    and does not reach this fraction if a lesson ends early."""

    def at(self, progress: float) -> float:
        """Return the coefficient after the fraction ``progress`` of the updates."""
        return self.coef * (1 - (1 - self.coef_end) * progress)


@settings()
class Reinforce:
    """Policy gradient ``-A log pi`` (section 3): one update with all steps of an iteration."""

    kind: Literal["reinforce"] = "reinforce"
    """This update."""
    num_iterations: ClassVar[int] = 1
    num_minibatches: ClassVar[int] = 1
    target_kl: ClassVar[float | None] = None
    kl_of_entropy: ClassVar[float | None] = None
    epsilon: ClassVar[float] = math.inf


@settings()
class PPO:
    """The clipped policy gradient (appendix A), in several updates."""

    kind: Literal["ppo"] = "ppo"
    """This update."""
    epsilon: Positive = 0.2
    """Clip range of the probability ratio."""
    num_iterations: Count = 2
    """Number of passes over each batch of episodes (mu)."""
    num_minibatches: Count = 4
    """Number of optimizer steps per pass."""
    target_kl: Positive | None = 0.03
    """Estimated KL divergence of a minibatch's new steps, in nats per step, thoughts included, above which an iteration
    stops updating; null: no limit."""
    kl_of_entropy: Positive | None = None
    """The same limit as a fraction of the policy's entropy in the iteration, where that is less. The learning rate
    follows it: it begins with a tenth, halves after an iteration that went further, and grows after one that went less
    than half as far, to twice as much at most, up to ten times its schedule (Rudin et al., 2022, do so with a fixed
    divergence). The first updates then cannot undo a policy that hardly hesitates. Thoughts count in the divergence,
    but not in the entropy, which is that of the action, or of a token of a written one; null: ``target_kl`` alone, and
    the schedule's rate."""


Update = Annotated[PPO | Reinforce, Field(discriminator="kind")]


@settings()
class EntropyBonus(Term):
    """A bonus for the entropy of the policy, in nats per step."""

    kind: Literal["bonus"] = "bonus"
    """This term."""
    coef: NonNegative = 0.02
    """Coefficient at the first update."""
    coef_end: Fraction = 0.1
    """Coefficient after the last update as a fraction of ``coef``; it changes linearly with the updates of all lessons,
    and does not reach this fraction if a lesson ends early."""
    floor: Positive | None = None
    """Entropy of a step, in nats, above which the bonus does not grow and so has no effect; absent: no limit."""

    def after(self, coef: float, entropy: float, *, uniform: float, progress: float) -> float:  # noqa: ARG002
        """Return ``coef``: it does not depend on the entropy."""
        return coef


@settings()
class EntropyTarget:
    """A bonus whose coefficient follows a target, like the temperature of soft actor-critic (Haarnoja et al., 2018).

    It rises after iterations with less entropy than the target, and falls after those with more.
    """

    target: Positive
    """Entropy per step that the policy should have, in ``unit``."""
    kind: Literal["target"] = "target"
    """This term."""
    unit: Literal["nats", "uniform"] = "uniform"
    """nats; or the entropy of a uniform choice, ``ln(length of the menu)`` averaged over the steps of the iteration,
    which suits menus of every length."""
    target_end: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Target after the last update as a fraction of the first one; it falls linearly. Below 1, the policy explores
    first and is nearly greedy in the end."""
    coef: Positive = 0.02
    """Coefficient at the first update."""
    floor: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        """Refuse a target that no policy can reach.

        Raises:
            InvalidInput: more than the entropy of a uniform choice.
        """
        if self.unit == "uniform" and self.target >= 1:
            raise InvalidInput(
                f"entropy has target={self.target:g} with unit=uniform; expected less than 1, the entropy of a uniform "
                "choice, or unit: nats"
            )

    def at(self, progress: float) -> float:  # noqa: ARG002 - as a term with a schedule
        """Return the coefficient."""
        return self.coef

    def after(self, coef: float, entropy: float, *, uniform: float, progress: float) -> float:
        """Return the next coefficient after an iteration.

        Args:
            coef: the coefficient in the iteration.
            entropy: mean entropy in nats per step.
            uniform: mean entropy of a uniform choice from the same menus, in nats per step.
            progress: fraction of the updates that are done.
        """
        first = self.target * (uniform if self.unit == "uniform" else 1.0)
        target = first * (1 - (1 - self.target_end) * progress)
        if not target:  # with no choice at any step
            return coef
        moved = coef * math.pow(target / max(entropy, target / ENTROPY_RANGE), ENTROPY_RATE)
        return min(max(moved, self.coef / ENTROPY_RANGE), self.coef * ENTROPY_RANGE)


Entropy = Annotated[EntropyBonus | EntropyTarget, Field(discriminator="kind")]


@settings()
class ThoughtTerm(Term):
    """Imitation of corrected thoughts, in nats per token (GTR, equation 3); actions are never imitated."""

    aggregate: Literal["all", "latest"] = "all"
    """Corrections to imitate: those of the run so far (DAgger), or of the current iteration."""
    sample: Literal["corrected", "all"] = "corrected"
    """What a minibatch draws, as many as it has steps: ``corrected`` steps; or any steps (``all``), where those without
    a correction have no loss, so that the term's weight follows how often thoughts are wrong, as in GTR's code."""


@settings()
class Terms:
    """Terms of the objective besides those of the policy (``update``) and the value head (``advantage``).

    The objective is their weighted sum.
    """

    entropy: Entropy | None = field(default_factory=EntropyBonus)
    """Bonus for the entropy of the policy; null: none."""
    sft_thought: ThoughtTerm | None = None
    """Imitation of the thoughts of ``players.corrector``, for policies that write before they act."""
    kl: Term | None = None
    """KL divergence of the policy from the initial policy, in nats per step, exact over the menu; the coefficient is
    TRL's beta. It costs one more forward pass per iteration and a copy of the trained weights."""


@settings()
class Replay:
    """Replay of successful episodes, used as if the current policy had played them (self-imitation, Oh et al., 2018).

    They have current values and no importance weights, but count only where their advantage is positive, and in the
    policy's term alone. They are drawn like tasks (``task_priority``), so that tasks which the policy is forgetting
    return first.
    """

    size: Count
    """Maximum number of episodes of the current lesson that are kept."""
    episodes: Count
    """Number of replayed episodes per iteration."""


@settings()
class Validation:
    """Validation during training, always on the same tasks of split ``validation`` with the same seeds.

    The weights that training begins with are validated first in each lesson, and the environment's expert, if it has
    one, plays the same episodes. A lesson ends early if sampled success is at least the expert's in two validations
    running, and the return has made 95 % of the way to the expert's.
    """

    every: Count | None = None
    """Number of iterations between validations; absent: so many that validations play about a fifth as many episodes as
    training. The last iteration of a lesson is validated as well."""
    episodes: Count = 64
    """Number of episodes, which take the tasks in turn, in the environment of the lesson."""
    greedy: bool = True
    """Also play the same episodes with the most probable action. It decides how the trained policy is played later:
    with sampled actions if their success is more than 5 points higher, and else with the most probable ones."""
    patience: Count | None = 8
    """Number of consecutive validations without a new best after which the lesson ends; null: never. It is not counted
    while no validation episode has succeeded, and is 4 at most where all of them do and there is no expert."""


@settings()
class RLFTSettings:
    """Settings of ``ReflectRLTrainer``, inherited by ``ReflectRLConfig``; names follow TRL where possible."""

    lessons: Annotated[list[Lesson], Field(min_length=1)] = field(default_factory=lambda: [Lesson("main", 100)])
    """Lessons of the curriculum, at least one."""
    episodes: Count = 64
    """Number of fresh episodes per iteration (B)."""
    episodes_per_task: Count = 1
    """Group size: number of episodes in a row that start from the same task."""
    task_priority: Fraction = 0.3
    """Fraction of the tasks drawn in proportion to their recent failure rate (prioritized level replay, Jiang et al.,
    2021); the others are drawn uniformly. Success, return and length are then weighted means, which estimate those of
    uniformly drawn tasks; the objective has no such weights."""
    batch_size: Count | None = None
    """Number of environments that play episodes in parallel; absent: one per episode. It does not change the draws."""
    learning_rate: Positive = 2e-4
    """Initial learning rate."""
    learning_rate_end: Fraction = 0.2
    """Final learning rate as a fraction of the initial one."""
    learning_rate_schedule: Literal["linear", "cosine"] = "linear"
    """Shape of the decrease to ``learning_rate_end``: linear, or half a cosine."""
    weight_decay: NonNegative = 0.001
    """AdamW weight decay."""
    max_grad_norm: NonNegative = 0.5
    """Maximum gradient norm; larger gradients are scaled down to it, 0 disables clipping."""
    micro_batch_tokens: Count = 2048
    """Maximum number of tokens per forward pass, padding included; an update uses all steps of its minibatch."""
    update: Update = field(default_factory=PPO)
    """How the policy learns from an iteration's steps: its term of the objective, and the number of updates."""
    advantage: Advantage = field(default_factory=GAE)
    """How much better than expected each action was."""
    terms: Terms = field(default_factory=Terms)
    """Further terms of the objective."""
    thought_lambda: Fraction = 0.5
    """Weight of the log-probability of the text before the action (lambda of RL4VLM, equation 4.3), for
    policies that think, and of the reflection, for ``players.reflector.trained``: 0 trains the action only, 1 weighs
    all tokens equally."""
    rewards: Annotated[dict[str, float], Field(min_length=1)] = field(default_factory=lambda: {"env": 1.0})
    """Weight of each source of rewards: ``env``; the role of a rater; for policies that write before they act,
    ``format``, which is 1 for each step whose text names a legal action; for written actions, ``illegal``, which is
    1 for each step whose text names none, so its weight should be negative; and ``novelty``, a bonus for exploration
    where rewards are rare, ``(1 - success) / sqrt(N)`` for each state that an episode reaches first (Strehl & Littman,
    2008; Tang et al., 2017). ``N`` is the number of episodes of the training that have visited a state which shows the
    same, whatever the task; ``success`` is the mean success rate of the lesson's last ``window`` iterations, so the
    bonus ends when the task is learned. It is not part of an episode's return."""
    normalize_rewards: bool = False
    """Divide the weighted rewards by the running standard deviation of the discounted return (as gymnasium's
    NormalizeReward; Engstrom et al., 2020), so that rewards of 0.01 and of 1,000 learn alike with the same settings.
    Records, thresholds and returns keep the environment's unit; ``advantage.value.clip`` is then in the new one."""
    format_into_return: bool = False
    """Add the reward ``format`` to the return of its own step only, as in GTR's code; otherwise it also counts in the
    returns of earlier steps."""
    fallback_credit: Literal["text", "mask"] = "text"
    """Advantage of a step whose text names no legal action, so that a random one was played. text: that of the
    played action, as in RL4VLM. mask: 0, also without an entropy bonus, so that only the value head learns from the
    step's reward."""
    gamma: Fraction = 1.0
    """Discount of the reward-to-go; the paper uses no discount (1)."""
    replay: Replay | None = None
    """Replay of successful episodes; absent: none."""
    validation: Validation | None = field(default_factory=Validation)
    """Validation during training; null: none, and the validation tasks are never read. An environment without such
    tasks is trained without it."""
    sharpen: tuple[Positive, ...] = ()
    """Factors of the policy's logits before training, of which that with the highest success rate of sampled validation
    episodes is kept, of equal ones the first: a fine-tuned policy that hesitates plays better at a lower temperature,
    and RLFT has more successes to learn from. Absent: 1. It needs a validation, and all weights to be trained."""
    keep: Literal["last", "best"] = "best"
    """Weights at the end of training: the last ones, as always without a validation, or those with the highest success
    rate of sampled validation episodes in the last lesson, the weights that training began with among them; if several
    are equal, those with the highest mean return, and then the latest."""
    ema: Fraction = 0.0
    """Decay per update of an exponential average of the weights, which is validated and is the result of training; 0
    for none. Rollouts and updates use the weights themselves."""
    save_every: Count = 10
    """Number of iterations between checkpoints."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            InvalidInput: incomplete groups or groups of one, a weight for a reward that is not given, or a replay that
                does not suit the estimator of advantages.
        """
        if isinstance(self.advantage, EpisodeGroup | StepGroup) and self.episodes_per_task == 1:
            raise InvalidInput(
                f"advantage.kind={self.advantage.kind} was given with episodes_per_task=1; expected at least 2, as it "
                "compares episodes of the same task, e.g. episodes_per_task: 4"
            )
        if self.episodes % self.episodes_per_task:
            raise InvalidInput(
                f"episodes={self.episodes} must be a multiple of episodes_per_task={self.episodes_per_task}"
            )
        if self.format_into_return and "format" not in self.rewards:
            raise InvalidInput("format_into_return needs a weight of the reward, e.g. rewards: {env: 1.0, format: 5.0}")
        if isinstance(self.advantage, EpisodeGroup) and (self.gamma < 1 or self.format_into_return):
            raise InvalidInput(
                f"gamma={self.gamma:g} and format_into_return={str(self.format_into_return).lower()} were given with "
                "advantage.kind=group, which compares undiscounted returns of whole episodes; leave them at 1 and false"
            )
        if self.sharpen and (self.validation is None or self.terms.kl is not None or len(self.lessons) > 1):
            raise InvalidInput(
                f"sharpen={list(self.sharpen)} was given, which changes the weights that training begins with; it "
                "needs a validation, which chooses, and a single lesson, and does not go with terms.kl"
            )
        if self.replay is not None and self.advantage.compares_episodes:
            raise InvalidInput(
                f"replay was given with advantage.kind={self.advantage.kind}, which compares episodes that the same "
                "policy played; expected a kind that does not, such as gae, or no replay"
            )

    @property
    def value(self) -> ValueHead | None:
        """The value head; ``None`` if advantages are estimated without one."""
        return self.advantage.value if isinstance(self.advantage, GAE) else None

    @property
    def bootstraps(self) -> bool:
        """Whether the value of the last state of a truncated episode is needed."""
        return isinstance(self.advantage, GAE) and self.advantage.bootstrap_truncated

    @property
    def updates_per_iteration(self) -> int:
        """Number of optimizer steps per iteration."""
        return self.update.num_iterations * self.update.num_minibatches

    @property
    def total_updates(self) -> int:
        """Number of optimizer steps, if no lesson ends early."""
        return sum(lesson.iterations for lesson in self.lessons) * self.updates_per_iteration

    def learning_rate_at(self, progress: float) -> float:
        """Return the learning rate as a fraction of the initial one, after a fraction of the updates."""
        done = min(1.0, progress)
        fallen = (1 - math.cos(math.pi * done)) / 2 if self.learning_rate_schedule == "cosine" else done
        return 1 - (1 - self.learning_rate_end) * fallen


SURVEYED = 48
"""Number of random episodes from which settings are chosen, and of the expert's."""
KL_OF_ENTROPY = 0.05
"""``kl_of_entropy`` that a budget chooses. Without it, a policy that solved all validation tasks of an environment that
nobody tuned won 77 % of the next iteration's episodes, and one of the suite's mastermind solved 81 % after 80
iterations; with it, both still solve all. A policy that writes the codes of a Mastermind fell from 94 to 26 % in three
iterations without it."""
UNIT = (0.2, 5.0)
"""Standard deviations of returns between which rewards need no scaling."""


def suited(horizon: int, return_spread: float) -> dict[str, tuple[Any, str]]:
    """Return settings that suit an environment and their reasons, by their names in ``RLFTSettings``.

    Args:
        horizon: maximum number of steps of an episode.
        return_spread: standard deviation of the returns of episodes.
    """
    discount = round(1 - 1 / min(max(2 * horizon, 20), 200), 4)
    chosen: dict[str, tuple[Any, str]] = {"gamma": (discount, f"episodes have up to {counted(horizon, 'step')}")}
    if not UNIT[0] < return_spread < UNIT[1]:
        chosen["normalize_rewards"] = True, f"returns have a standard deviation of {return_spread:.2g}"
    return chosen


@settings()
class RLFTSection(RLFTSettings):
    """Stage 2: online policy gradient (Algorithm 1, lines 23-36)."""

    trainer: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")] | None = None
    """``module:Class`` of a subclass of ``ReflectRLTrainer``, for a method of your own; the class itself if absent."""
    record_episodes: CountOrZero = 8
    """Number of episodes per iteration that are written to ``trajectories/``; a tracker is sent none of the others."""


def check_action_mode(settings: RLFTSettings, mode: ActionMode, *, reflects: bool) -> None:
    """Check that settings about what a policy writes, or about its menu, have an effect with its action mode.

    Args:
        settings: settings of the training.
        mode: action mode of the policy.
        reflects: whether a reflector is trained as well, which writes in any mode.

    Raises:
        InvalidInput: a setting that has no effect.
    """
    silent, setting, thinking = mode not in THOUGHTS, "the prompt's action_mode", " or ".join(THOUGHTS)
    if silent and not reflects and settings.thought_lambda != RLFTSettings.thought_lambda:
        raise InvalidInput(
            f"thought_lambda={settings.thought_lambda:g} was given, but with {setting}={mode} there are no "
            f"thoughts; remove it, or set {setting} to {thinking}"
        )
    if silent and settings.terms.sft_thought is not None:
        raise InvalidInput(
            f"terms.sft_thought was given, but with {setting}={mode} there are no thoughts to correct; remove it "
            f"and the corrector, or set {setting} to {thinking}"
        )
    if settings.terms.kl is not None and mode in WRITTEN_ACTIONS:
        raise InvalidInput(
            "terms.kl is exact over the menu, which a written action is not drawn from; remove it, or set "
            f"{setting} to enumerated or thought_choice"
        )
    entropy = settings.terms.entropy
    if isinstance(entropy, EntropyTarget) and entropy.unit == "uniform" and mode in WRITTEN_ACTIONS:
        raise InvalidInput(
            "terms.entropy.unit=uniform compares with a uniform choice from the menu, which a written action is not "
            "drawn from; set it to nats"
        )
    if mode not in WRITTEN_ACTIONS and settings.fallback_credit != RLFTSettings.fallback_credit:
        raise InvalidInput(
            f"fallback_credit={settings.fallback_credit} was given, but with {setting}={mode} each answer names a "
            f"legal action; remove it, or set {setting} to {' or '.join(WRITTEN_ACTIONS)}"
        )
    for source in (each for each in settings.rewards if mode not in TEXT_REWARDS.get(each, (mode,))):
        raise InvalidInput(
            f"rewards names {source}, but {setting} is {mode}; set that to {' or '.join(TEXT_REWARDS[source])}, or "
            "remove the reward"
        )
