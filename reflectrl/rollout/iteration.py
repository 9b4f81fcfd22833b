"""Metrics of training, each record a line of a file: ``Iteration``, ``Throughput`` (RLFT) and ``SFTProgress`` (SFT)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypeAlias

from reflectrl.core.metric import metric
from reflectrl.rollout.metrics import EpisodeMeans
from reflectrl.seats import SEATS

Ends: TypeAlias = Literal["iterations", "success_threshold", "patience", "expert"]
"""What ends a stage of the curriculum."""


@dataclass(frozen=True, kw_only=True)
class IterationPlace:
    """Position of an iteration in the curriculum."""

    iteration: int
    """Number of the iteration, from 0."""
    stage: str
    """Name of the stage of the curriculum."""


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
    validation_start: float | None = metric("rollout/validation_start", fraction=True, default=None)
    """In the first iteration of a stage: ``validation_success`` of the weights that training began with."""
    validation_start_greedy: float | None = metric(
        "rollout/validation_start_greedy",
        fraction=True,
        default=None,
    )
    """In the first iteration of a stage: ``validation_greedy`` of the weights that training began with."""
    validation_expert: float | None = metric("rollout/validation_expert", fraction=True, default=None)
    """In the first iteration of a stage: success rate of the expert on these episodes; ``None`` without an expert."""
    validation_by_group: Mapping[str, float]
    """Success rate of the sampled validation episodes by group of tasks; empty without a validation or groups."""
    ended: Ends | None = None
    """In the last iteration of a stage: what ended it. expert: sampled validation reached the expert's level."""
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
