"""``Measures``: measurements of one iteration on this process, with the divergences of its updates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from reflectrl.config.training import NOVELTY
from reflectrl.core import Trajectory
from reflectrl.lm.policy import LMPolicy, Scores
from reflectrl.lm.reflecting import ReflectingPolicy
from reflectrl.lm.thinking import WritingPolicy
from reflectrl.prompts.players import CountsMisses
from reflectrl.rollout import episode_metrics
from reflectrl.rollout.iteration import outcome_means
from reflectrl.rollout.thoughts import thought_means
from reflectrl.seats import SEATS
from reflectrl.seats.table import Seat
from reflectrl.training.batch import StepSample
from reflectrl.training.imitation import Imitation
from reflectrl.training.objective import MAX_LOG_RATIO


class Divergences:
    """KL divergences of text and action over the steps of an iteration, for policies that write before they act."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float]] = []

    def add(self, samples: Sequence[StepSample], scores: Scores) -> None:
        """Add the fresh steps of a forward pass."""
        if all(sample.decision.choice.written is None for sample in samples):
            return  # without a wait for the device
        now = zip(samples, scores.thought_logprobs.tolist(), scores.logprobs.tolist(), strict=True)
        for sample, thought, action in now:
            written = sample.decision.choice.written
            if written is not None and not sample.replayed:
                self._found.append((_k3(thought - written.thought_logprob), _k3(action - sample.decision.logprob)))

    def means(self) -> dict[str, float]:
        """Return the fields ``thought_kl`` and ``action_kl`` of ``Iteration``, and reset; empty without texts."""
        found, self._found = self._found, []
        if not found:
            return {}
        thoughts, actions = zip(*found, strict=True)
        return {"thought_kl": fmean(thoughts), "action_kl": fmean(actions)}


def _k3(log_ratio: float) -> float:
    """Estimate KL(sampling policy || current policy) in nats from one sample, as ``Loss.kl`` does."""
    log_ratio = max(-MAX_LOG_RATIO, min(log_ratio, MAX_LOG_RATIO))
    return math.exp(log_ratio) - 1 - log_ratio


class Measures:
    """Measurements of one iteration at a time; ``imitation`` is the objective's term ``sft_thought``."""

    def __init__(self, policy: LMPolicy, seats: Sequence[Seat], imitation: Imitation) -> None:
        self._policy = policy
        self._imitation = imitation
        self._counting = {
            kind.misses: seat.player
            for kind in SEATS
            for seat in seats
            if seat.role == kind.role.name and kind.misses and isinstance(seat.player, CountsMisses)
        }
        self.divergences = Divergences()
        self.begin()

    def begin(self) -> None:
        """Begin an iteration, before its rollout."""
        self.updates: list[tuple[float, float, float]] = []
        """Loss, KL divergence and fraction of clipped steps of each update."""
        self.learning_rate = 0.0
        """Learning rate of the last update; 0 before the first."""
        self.norms: list[float] = []
        """Norm of the gradient of each update."""
        self.gaps: list[float] = []
        """Differences of log-probabilities in the rollout and before the first update."""
        self._before = {name: player.misses for name, player in self._counting.items()}

    @property
    def last_kl(self) -> float:
        """KL divergence of the last update on this process, in nats per step; 0 before the first."""
        return self.updates[-1][1] if self.updates else 0.0

    def add_update(self, samples: Sequence[StepSample], sums: Sequence[Tensor], imitated: float, rate: float) -> float:
        """Add an update: its (3,) sums of loss, KL and clipped steps per forward pass; return its mean loss."""
        columns = zip(*torch.stack(list(sums)).tolist(), strict=True)  # one transfer from the device
        total, kl, clipped = map(sum, columns)
        fresh = max(1, sum(not sample.replayed for sample in samples))  # the ratio of replayed steps is 1
        mean = total / len(samples) + imitated
        self.updates.append((mean, kl / fresh, clipped / fresh))
        self.learning_rate = rate
        return mean

    def means(self, fresh: Sequence[Trajectory], weights: Sequence[float] | None) -> dict[str, float]:
        """Return fields of ``Iteration`` for fresh episodes, as means on this process; NaN where unknown.

        ``weights`` of the episodes are for success, return and length; the other fields describe what was played.
        """
        served = self._policy.gaps if isinstance(self._policy, WritingPolicy) else []
        loss, kl, clipped = (_mean(column) for column in zip(*self.updates or [(0.0,) * 3], strict=True))
        return {
            **episode_metrics(fresh).means,
            **outcome_means(fresh, weights),
            **self._thoughts(fresh),
            **{"loss": loss, "kl": kl, "clipped": clipped},
            **_of_menus_and_novelty(fresh),
            **{"grad_norm": _mean(self.norms or [0.0]), "logprob_gap": fmean(served or self.gaps or [0.0])},
            **self.divergences.means(),
            **{name: value for kind in SEATS for name, value in kind.measure(fresh).items()},
            **self._truncated(fresh),
            **self._imitation.means(),
            **self._misses(),
        }

    def _truncated(self, fresh: Sequence[Trajectory]) -> Mapping[str, float]:
        """Return the fraction of the texts that the token limit cut off, but not for a reflection and a thought."""
        if not isinstance(self._policy, WritingPolicy) or isinstance(self._policy, ReflectingPolicy):
            return {}
        decisions = [turn.decision for each in fresh for turn in each.turns]
        return {"thought_truncated": fmean(map(self._policy.was_truncated, decisions))}

    def _thoughts(self, fresh: Sequence[Trajectory]) -> Mapping[str, float]:
        means = thought_means(fresh)
        if isinstance(self._policy, WritingPolicy) and not self._policy.thinks:
            return {name: means[name] for name in ("thought_tokens",) if name in means}
        return means

    def _misses(self) -> Mapping[str, float]:
        rates = {}
        for name, player in self._counting.items():
            asked, missed = (now - before for now, before in zip(player.misses, self._before[name], strict=True))
            rates[name] = missed / asked if asked else math.nan
        return rates


def _of_menus_and_novelty(fresh: Sequence[Trajectory]) -> dict[str, float]:
    turns = [turn for each in fresh for turn in each.turns]
    means = {"entropy_uniform": fmean(math.log(len(turn.menu) or 1) for turn in turns)}
    if NOVELTY in turns[0].rewards:
        means[NOVELTY] = sum(turn.rewards[NOVELTY] for turn in turns) / len(fresh)
    return means


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
