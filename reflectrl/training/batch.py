"""Conversion of episodes to the samples of an update: (view, decision, advantage)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reflectrl.config.advantage import Steps, spread
from reflectrl.config.training import PPO, Reinforce, RLFTSettings
from reflectrl.core import Decision, Trajectory, Turn, WorkFailed
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.rollout.turn import policy_views
from reflectrl.seats.table import Seat


@dataclass(frozen=True)
class StepSample:
    """One step of an episode, as a sample of an update."""

    view: MenuView
    decision: Decision
    """Decision of the policy, with its log-probability at sampling time."""
    advantage: float
    target: float
    """Target of the value head: the reward-to-go, or advantage + value with GAE."""
    replayed: bool = False
    """Whether the step comes from the replay buffer."""
    masked: bool = False
    """Whether the policy learns nothing from the step, because its action is not the policy's."""
    reference: tuple[float, ...] = ()
    """(n,) log-probabilities of the menu's actions under the initial policy; empty without a KL term."""

    @property
    def row(self) -> dict[str, Any]:
        """The sample as plain values, for people to read."""
        return {
            "prompt": self.view.prompt.text,
            "menu": dict(zip(self.view.menu.labels, self.view.menu.actions, strict=True)),
            "action": self.decision.action,
            "advantage": self.advantage,
            "return": self.target,
            "old_logprob": self.decision.logprob,
        }


def scored(trajectory: Trajectory, weights: Mapping[str, float]) -> bool:
    """Return whether every source with a weight rewarded a step of the episode: a failed rating is not one of 0."""
    named = [source for source, weight in weights.items() if weight]
    return all(any(source in _sources(turn) for turn in trajectory.turns) for source in named)


def all_scored(fresh: Sequence[Trajectory], weights: Mapping[str, float], iteration: int) -> list[Trajectory]:
    """Return the episodes to learn from: those that every source rewarded.

    Raises:
        WorkFailed: there are none.
    """
    learned = [episode for episode in fresh if scored(episode, weights)]
    if not learned:
        raise WorkFailed(
            f"no episode of iteration {iteration} was rewarded by all of {', '.join(weights)}, so there is nothing to "
            "learn from: fix the rater, then continue from the last checkpoint (the same command)."
        )
    return learned


def _sources(turn: Turn) -> Mapping[str, float]:
    """Return the rewards of a turn by source, including ``illegal`` if the turn has a reward ``format``."""
    legal = turn.rewards.get("format")
    return turn.rewards if legal is None else {**turn.rewards, "illegal": 1 - legal}


def _weights(settings: RLFTSettings, unit: float) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the weights over ``unit`` of rewards that count in earlier steps' returns, and of those that do not."""
    weights = {name: weight / unit for name, weight in settings.rewards.items()}
    apart = {"format": weights.pop("format")} if settings.format_into_return else {}
    return weights, apart


def with_values(trajectory: Trajectory, factor: float) -> Trajectory:
    """Return an episode with the estimates of the value head times ``factor``."""
    if factor == 1:
        return trajectory
    turns = [
        replace(turn, decision=replace(turn.decision, value=turn.decision.value * factor)) for turn in trajectory.turns
    ]
    return replace(trajectory, turns=tuple(turns), last_value=trajectory.last_value * factor)


def weighted_rewards(trajectory: Trajectory, weights: Mapping[str, float]) -> list[float]:
    """Return the (T,) weighted sums of each step's rewards, over the sources that rewarded the step."""
    return [
        sum(weight * rewards[source] for source, weight in weights.items() if source in rewards)
        for rewards in map(_sources, trajectory.turns)
    ]


def rated_alike(
    learned: Sequence[Trajectory],
    weights: Mapping[str, float],
    seats: Sequence[Seat],
    gather: Callable[..., list[list[float]]],
) -> bool:
    """Return whether there is nothing to learn: only ratings at the end are rewards, and they do not differ.

    Args:
        learned: the episodes of this process, each with a rating.
        weights: weights of the sources of rewards.
        seats: the frozen players.
        gather: exchanges numbers between processes; returns one list per process.
    """
    raters, sources = {seat.role for seat in seats if seat.when == "episode_end"}, {n for n, w in weights.items() if w}
    if not sources or not sources <= raters:
        return False
    rewards = [weighted_rewards(trajectory, weights) for trajectory in learned]
    earlier = any(any(each[:-1]) for each in rewards)
    ends = [each[-1] for each in rewards]
    low, high, others, counts = zip(*gather(min(ends), max(ends), earlier, len(ends)), strict=True)
    return min(low) == max(high) and not any(others) and sum(counts) > 1


def step_samples(
    fresh: Sequence[Trajectory],
    layout: PromptFormat,
    settings: RLFTSettings,
    replayed: Sequence[Trajectory] = (),
    *,
    unit: float = 1.0,
) -> list[StepSample]:
    """Return the samples of all steps, those of fresh episodes first, with the advantages that ``settings`` define.

    Rewards and values of the episodes are divided by ``unit``, in which advantages and targets are.

    A replayed step keeps only the positive part of its advantage (self-imitation, Oh et al., 2018, equation 2): its
    action was sampled by another policy, so PPO's clip could not bound how far a negative advantage pushes it down.
    """
    trajectories = [with_values(each, 1 / unit) for each in (*fresh, *replayed)]
    weights, weights_apart = _weights(settings, unit)
    views = [view for trajectory in trajectories for view in policy_views(trajectory, layout)]
    decisions = [turn.decision for trajectory in trajectories for turn in trajectory.turns]
    steps = Steps(
        rewards=[weighted_rewards(trajectory, weights) for trajectory in trajectories],
        own_rewards=np.array([each for t in trajectories for each in weighted_rewards(t, weights_apart)]),
        gamma=settings.gamma,
        fresh=sum(len(trajectory.turns) for trajectory in fresh),
        values=[[turn.decision.value for turn in trajectory.turns] for trajectory in trajectories],
        last_values=[trajectory.last_value for trajectory in trajectories],
        tasks=[trajectory.task.id for trajectory in trajectories],
        states=[(each.task.id, turn.observation) for each in trajectories for turn in each.turns],
        prompts=[view.prompt for view in views],
    )
    advantages, targets = settings.advantage.estimate(steps)
    advantages, played = advantages.copy(), steps.fresh
    if settings.advantage.center:
        advantages -= advantages[:played].mean()
    if settings.advantage.normalize:
        advantages /= spread(advantages[:played])
    advantages[played:] = advantages[played:].clip(min=0)
    masked = [settings.fallback_credit == "mask" and not decision.choice.legal for decision in decisions]
    advantages[masked] = 0.0
    replays = [number >= played for number in range(len(decisions))]
    rows = zip(views, decisions, advantages.tolist(), targets.tolist(), replays, masked, strict=True)
    return [StepSample(*row) for row in rows]


def advantages_by_episode(
    samples: Sequence[StepSample], learned: Sequence[Trajectory], played: Sequence[Trajectory]
) -> list[list[float]]:
    """Return the advantages of the steps of each episode in ``played``; an empty list for those not in ``learned``.

    ``samples`` start with the steps of ``learned``, in order.
    """
    following = iter(samples)
    learned_from = set(map(id, learned))
    return [
        [next(following).advantage for _ in trajectory.turns] if id(trajectory) in learned_from else []
        for trajectory in played
    ]


def columns_of(samples: Sequence[StepSample], device: torch.device) -> tuple[Tensor, dict[str, Tensor]]:
    """Return (N,) tensors: the unweighted log-probabilities at sampling time, and arguments of ``step_losses``."""
    names = ("advantages", "old_values", "targets", "replayed", "masked")
    rows = [
        (each.decision.joint_logprob(1.0), each.advantage, each.decision.value, each.target, each.replayed, each.masked)
        for each in samples
    ]
    sampled, *columns = torch.tensor(rows).to(device).unbind(-1)
    return sampled, dict(zip(names, columns, strict=True))


def references(samples: Sequence[StepSample]) -> Tensor:
    """Return the (N, A) log-probabilities of the menus under the initial policy, padded with 0."""
    longest = max(len(sample.reference) for sample in samples)
    return torch.tensor([(*each.reference, *[0.0] * (longest - len(each.reference))) for each in samples])


def gaps(samples: Sequence[StepSample], played: Sequence[float], logprobs: Sequence[float]) -> list[float]:
    """Return the absolute differences of ``logprobs`` and ``played``, for the samples that are not replayed."""
    pairs = zip(samples, played, logprobs, strict=True)
    return [abs(now - before) for sample, before, now in pairs if not sample.replayed]


def minibatches(
    samples: Sequence[StepSample], update: PPO | Reinforce, rng: random.Random, *, whole: bool = False
) -> list[list[StepSample]]:
    """Return the minibatches of all passes; each pass is a new permutation cut into parts of nearly equal size.

    With fewer samples than parts, the whole permutation replaces each minibatch that would be empty. ``whole`` episodes
    stay together, so that a prefix tree holds prompts that extend each other once.
    """
    groups = _episodes(samples) if whole else [[sample] for sample in samples]
    batches, parts = [], update.num_minibatches
    for _ in range(update.num_iterations):
        order = rng.sample(groups, len(groups))
        batches += [[sample for group in order[part::parts] or order for sample in group] for part in range(parts)]
    return batches


def _episodes(samples: Sequence[StepSample]) -> list[list[StepSample]]:
    """Divide samples, in order, where a step is not a later one than the step before."""
    found: list[list[StepSample]] = []
    for sample in samples:
        if not found or len(sample.view.past) <= len(found[-1][-1].view.past):
            found.append([])
        found[-1].append(sample)
    return found
