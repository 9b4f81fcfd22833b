"""Metrics of episodes, and of training: ``Iteration``, ``Throughput`` and ``SFTProgress``, each a line of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

from reflectrl.core import Trajectory
from reflectrl.core.metric import metric, metrics_of
from reflectrl.seats import SEATS

Z95 = 1.959964
"""Two-sided 95 % quantile of the normal distribution."""


@dataclass(frozen=True, kw_only=True)
class EpisodeMeans:
    """Means over episodes, which can be averaged over processes that have equally many episodes."""

    success: float = metric("rollout/success", "Success rate", fraction=True)
    """Fraction of the episodes that succeeded; like return and length, an estimate for uniformly drawn training tasks
    where ``rlft.task_priority`` draws others."""
    episode_return: float = metric("rollout/return", "Return")
    """Mean undiscounted return."""
    length: float = metric("rollout/length", "Steps an episode", low=0.0)
    """Mean number of steps per episode."""
    illegal: float = metric("rollout/illegal", fraction=True)
    """Fraction of the steps with an illegal action, including texts that name no legal action and were replaced by a
    random one."""
    entropy: float = metric("rollout/entropy", "Entropy (nats a step)", low=0.0)
    """Mean entropy of the policy over the menu, in nats per step."""


@dataclass(frozen=True, kw_only=True)
class EpisodeMetrics(EpisodeMeans):
    """Means over episodes, with the uncertainty of the success rate."""

    episodes: int
    success_low: float
    """Lower end of the 95 % Wilson interval of the success rate, see ``independent_trials``."""
    success_high: float
    """Upper end of the 95 % Wilson interval of the success rate."""

    @property
    def means(self) -> dict[str, float]:
        """Values of the fields of ``EpisodeMeans``, by name."""
        return {name: getattr(self, name) for name in metrics_of(EpisodeMeans)}


def wilson_interval(rate: float, trials: float) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion ``rate`` seen in ``trials`` independent trials."""
    z2 = Z95 * Z95
    centre = (rate + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 / (1 + z2 / trials) * math.sqrt(rate * (1 - rate) / trials + z2 / (4 * trials * trials))
    return max(0.0, centre - half), min(1.0, centre + half)


def independent_trials(trajectories: Sequence[Trajectory]) -> float:
    """Return the effective number of independent episodes, which is lower than their number if tasks are repeated.

    A nearly deterministic policy repeats its actions when a task is repeated, so the sampling unit is the task. The
    result is the number of trials whose binomial variance equals the variance of the mean over tasks (Kish's effective
    sample size); it lies between the number of tasks and the number of episodes.
    """
    by_task: dict[str, list[bool]] = {}
    for trajectory in trajectories:
        by_task.setdefault(trajectory.task.id, []).append(trajectory.success)
    tasks, episodes = len(by_task), len(trajectories)
    rate = fmean(trajectory.success for trajectory in trajectories)
    # each task is weighted by its number of episodes
    spread = sum((sum(wins) - rate * len(wins)) ** 2 for wins in by_task.values()) / episodes**2
    if tasks < 2 or spread == 0:
        return float(tasks)
    variance = spread * tasks / (tasks - 1)
    return min(float(episodes), max(float(tasks), rate * (1 - rate) / variance))


def wins_and_episodes(
    trajectories: Sequence[Trajectory], group: str, weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Return the weight of the successful episodes of a group of tasks, and of all its episodes; 1 each if absent."""
    weighted = zip(trajectories, weights or [1.0] * len(trajectories), strict=True)
    found = [(weight * each.success, weight) for each, weight in weighted if each.task.group == group]
    return sum(won for won, _ in found), sum(weight for _, weight in found)


def outcome_means(trajectories: Sequence[Trajectory], weights: Sequence[float] | None = None) -> dict[str, float]:
    """Return success, return and length as means in which episodes count by their weights; equally if absent."""
    return {
        "success": fmean((t.success for t in trajectories), weights),
        "episode_return": fmean((t.episode_return for t in trajectories), weights),
        "length": fmean((len(t.turns) for t in trajectories), weights),
    }


def episode_metrics(trajectories: Sequence[Trajectory]) -> EpisodeMetrics:
    """Return the metrics of a set of episodes, of which there is at least one."""
    outcomes = outcome_means(trajectories)
    turns = [turn for t in trajectories for turn in t.turns]
    low, high = wilson_interval(outcomes["success"], independent_trials(trajectories))
    return EpisodeMetrics(
        episodes=len(trajectories),
        success_low=low,
        success_high=high,
        **outcomes,
        illegal=fmean(turn.illegal or not turn.decision.choice.legal for turn in turns),
        entropy=fmean(turn.decision.entropy for turn in turns),
    )


SFTEnds: TypeAlias = Literal["bound", "minutes", "plateau"]
"""What ends a fine-tuning: its bound, the minutes of the budget, or that held-out rows hardly improve."""
Ends: TypeAlias = Literal["iterations", "minutes", "success_threshold", "patience", "expert"]
"""What ends a lesson of the curriculum."""


@dataclass(frozen=True, kw_only=True)
class IterationPlace:
    """Position of an iteration in the curriculum."""

    iteration: int
    """Number of the iteration, from 0."""
    lesson: str
    """Name of the lesson of the curriculum."""


if TYPE_CHECKING:

    @dataclass(frozen=True, kw_only=True)
    class SeatMeans:
        """Metrics that exist because of a seat; ``None`` in a run without it."""

else:
    SeatMeans = make_dataclass(
        "SeatMeans",
        [(name, float | None, declared) for kind in SEATS for name, declared in kind.metrics.items()],
        frozen=True,
        kw_only=True,
    )


@dataclass(frozen=True, kw_only=True)
class Iteration(SeatMeans, EpisodeMeans, IterationPlace):
    """Metrics of one iteration, which depend on recipe and seed only, also if the run was interrupted."""

    success_by_group: Mapping[str, float]
    """Success rate of the fresh episodes by group of tasks; empty where the environment has no groups."""
    loss: float = metric("update/loss", "Loss")
    """Loss with all its terms, as the mean over the updates of the iteration; 0 without updates."""
    kl: float = metric("update/kl", "KL divergence")
    """Estimated KL divergence of the updated policy from the sampling policy in nats, over text and action and without
    ``thought_lambda``: mean over the steps of new episodes and the updates."""
    clipped: float = metric("update/clipped", "Clipped steps", fraction=True)
    """Fraction of the steps of new episodes outside the clip range."""
    grad_norm: float = metric("update/grad_norm", "Gradient norm", low=0.0)
    """Norm of the gradient before clipping, mean over the updates."""
    learning_rate: float = metric("update/learning_rate", "Learning rate", low=0.0)
    """Learning rate of the policy at the last update."""
    logprob_gap: float = metric("update/logprob_gap", low=0.0)
    """Mean absolute difference in nats between the log-probabilities in the rollout and those recomputed for the first
    minibatch before any update; of a policy that writes on a server, between the server's and this process's, over the
    tokens."""
    entropy_coef: float | None = metric("update/entropy_coef", "Entropy coefficient", low=0.0)
    """Coefficient of an entropy bonus with a target; ``None`` for one with a schedule."""
    entropy_uniform: float | None = metric("rollout/entropy_uniform", low=0.0, default=None)
    """Mean entropy of a uniform choice from the menus that were shown, in nats per step: the highest ``entropy``."""
    novelty: float | None = metric("rollout/novelty", "Novelty an episode", low=0.0, default=None)
    """Mean sum of an episode's rewards for novelty, without their weight; ``None`` where they have none."""
    thought_tokens: float | None = metric("rollout/thought_tokens", "Tokens written a step", low=0.0, default=None)
    """Mean number of tokens per text of the policy; ``None``, like all ``thought_*`` fields, if it writes no text."""
    thought_distinct: float | None = metric(
        "rollout/thought_distinct", "Distinct thoughts", fraction=True, default=None
    )
    """Number of distinct thoughts as a fraction of all thoughts of the iteration."""
    thought_repeated: float | None = metric("rollout/thought_repeated", fraction=True, default=None)
    """Fraction of the steps whose thought equals that of the previous step."""
    thought_bleu: float | None = metric("rollout/thought_bleu", "Self-BLEU of thoughts", fraction=True, default=None)
    """Mean BLEU-2 of a thought against the other thoughts; 1 if all are equal."""
    thought_templates: float | None = metric(
        "rollout/thought_templates",
        "Distinct templates",
        fraction=True,
        default=None,
    )
    """Number of distinct thoughts after masking numbers and names, as a fraction of all thoughts of the iteration."""
    thought_misread: float | None = metric("rollout/thought_misread", "Misread states", fraction=True, default=None)
    """Fraction of the thoughts that misread the state; ``None`` where the environment cannot tell."""
    thought_consistent: float | None = metric(
        "rollout/thought_consistent", "Consistent thoughts", fraction=True, default=None
    )
    """Fraction of the thoughts followed by the action that they call for, among thoughts that call for an action."""
    thought_corrected: float | None = metric(
        "rollout/thought_corrected", "Corrected thoughts", fraction=True, default=None
    )
    """Fraction of the thoughts that a corrector rewrote; ``None`` without a corrector."""
    thought_truncated: float | None = metric("rollout/thought_truncated", fraction=True, default=None)
    """Fraction of the texts that the token limit cut off; ``None`` for reflections of a trained reflector."""
    imitated: float | None = metric("update/imitated", low=0.0, default=None)
    """Mean number of corrected thoughts that an update imitated; ``None`` without ``sft_thought`` or updates."""
    imitated_too_long: float | None = metric("update/imitated_too_long", low=0.0, default=None)
    """Mean number of corrected thoughts that an update drew but left out because they are too long."""
    thought_kl: float | None = metric("update/thought_kl", "KL divergence of thoughts", default=None)
    """KL divergence like ``kl``, of the written text alone and unweighted; ``None`` without text."""
    action_kl: float | None = metric("update/action_kl", "KL divergence of actions", default=None)
    """KL divergence like ``kl``, of the action given the text alone; ``None`` without text."""
    replayed: int = metric("rollout/replayed")
    """Number of episodes from the replay buffer."""
    validation_success: float | None = metric("rollout/validation_success", "Validation success", fraction=True)
    """Success rate of the sampled validation episodes after the updates; ``None`` without a validation."""
    validation_greedy: float | None = metric("rollout/validation_greedy", "Greedy validation success", fraction=True)
    """Success rate of the same episodes with the most probable actions; ``None`` without such a validation."""
    validation_return: float | None = metric("rollout/validation_return", "Validation return", default=None)
    """Mean undiscounted return of the sampled validation episodes; ``None`` without a validation."""
    sharpened: float | None = None
    """In the first iteration: factor of the logits of the weights that training began with; ``None`` without."""
    validation_start: float | None = metric("rollout/validation_start", fraction=True, default=None)
    """In the first iteration of a lesson: ``validation_success`` of the weights that training began with."""
    validation_start_greedy: float | None = metric(
        "rollout/validation_start_greedy",
        fraction=True,
        default=None,
    )
    """In the first iteration of a lesson: ``validation_greedy`` of the weights that training began with."""
    validation_expert: float | None = metric("rollout/validation_expert", fraction=True, default=None)
    """In the first iteration of a lesson: success rate of the expert on these episodes; ``None`` without an expert."""
    validation_by_group: Mapping[str, float]
    """Success rate of the sampled validation episodes by group of tasks; empty without a validation or groups."""
    ended: Ends | None = None
    """In the last iteration of a lesson: what ended it. expert: sampled validation reached the expert's level; minutes:
    those of the budget were over."""
    env_steps: int = metric("rollout/env_steps")
    """Number of environment steps since the start of training, over all processes."""

    @property
    def by_group(self) -> dict[str, float]:
        """Success rates of groups of tasks, keyed by field and group, such as ``validation_success/red``."""
        rates = {"success": self.success_by_group, "validation_success": self.validation_by_group}
        return {f"{field}/{group}": rate for field, groups in rates.items() for group, rate in groups.items()}


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Speed of one iteration, which differs from run to run."""

    iteration: int
    """Number of the iteration, from 0."""
    seconds: float = metric("speed/seconds")
    """Wall time of the iteration in seconds."""
    steps_per_second: float = metric("speed/steps_per_second", "Environment steps a second")
    reflection_hit_rate: float = metric("speed/reflection_hit_rate", "Reflections from the cache", fraction=True)
    """Fraction of reflections that came from the cache, since the start of the process."""
    prompt_reuse: float = metric("speed/prompt_reuse")
    """Fraction of prompt tokens whose keys and values were in the prefix cache."""
    env_failures: int = metric("speed/env_failures")
    """Number of crashes and timeouts of environments."""
    env_recycled: int = metric("speed/env_recycled")
    """Number of environment workers that were replaced."""


@dataclass(frozen=True)
class SFTProgress:
    """Loss and accuracy of one player at a check; a single player has a record as reflector and one as policy."""

    step: int
    """Number of optimizer steps that were made."""
    loss: float | None = metric("loss")
    """Mean loss of the training rows since the check before, in nats; ``None`` if a single player had none."""
    held_out_loss: float = metric("held_out_loss")
    """Mean loss of the held-out rows, in nats."""
    accuracy: float = metric("accuracy", fraction=True)
    """Fraction of the held-out rows whose target the player would choose: a policy's label as the most probable of its
    menu, given the teacher's thought if it writes one; a text, a policy's answer in JSON included, to the last token in
    greedy decoding."""
    word_accuracy: float | None = metric("word_accuracy", fraction=True)
    """Fraction of the words of the held-out texts that are the most probable ones after the teacher's words before
    them; ``None`` for a policy that writes nothing."""
    hardest: str | None = None
    """First word of the targets that a policy gets right least often; ``None`` unless held-out rows show targets of two
    kinds, each often."""
    hardest_accuracy: float = 1.0
    """Accuracy on these targets; 1 if there are none."""
    ended: SFTEnds | None = None
    """In the last check: what ended the training."""


def check_scores(checks: Mapping[str, Sequence[SFTProgress]]) -> list[float]:
    """Return how far from perfect a model was at each check.

    A policy's score is its held-out loss, which also counts how certain it is: RLFT begins with its probabilities. A
    reflector speaks greedily, so its score is the fraction of its words that are wrong.

    Args:
        checks: the checks of each player that the model is trained as, at the same steps; of a single player's two
            scores, the mean counts.
    """

    def score(player: str, check: SFTProgress) -> float:
        if player == "reflector" and check.word_accuracy is not None:
            return 1 - check.word_accuracy
        return check.held_out_loss

    rows = zip(*checks.values(), strict=True)
    return [fmean(score(*each) for each in zip(checks, row, strict=True)) for row in rows]


def best_check(checks: Mapping[str, Sequence[SFTProgress]]) -> int:
    """Return the place of the check whose weights are kept, that with the lowest score; the last of equals."""
    scores = check_scores(checks)
    return min(reversed(range(len(scores))), key=scores.__getitem__)
