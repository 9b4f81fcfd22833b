"""From episodes to the samples of an update: (prompt, one token, advantage)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.core import Decision, Trajectory
from reflectrl.prompts import Prompt, PromptFormat
from reflectrl.rollout.record import prompts_of
from reflectrl.training.advantage import leave_one_out, normalized, rewards_to_go


@dataclass(frozen=True)
class StepSample:
    """One step of an episode, as the update sees it."""

    prompt: Prompt
    index: int
    """Position of the action in the menu."""
    old_logprob: float
    """When it was sampled."""
    advantage: float
    returned: float
    """Reward-to-go."""


def step_samples(
    trajectories: Sequence[Trajectory],
    layout: PromptFormat,
    *,
    gamma: float,
    baseline: str,
    normalize: bool,
) -> list[StepSample]:
    """All steps of ``trajectories`` with their advantages."""
    prompts = [policy for trajectory in trajectories for _, policy in prompts_of(trajectory, layout)]
    returns = torch.cat([rewards_to_go(trajectory.rewards, gamma) for trajectory in trajectories])
    decisions = [turn.decision for trajectory in trajectories for turn in trajectory.turns]
    episodes = torch.tensor([number for number, trajectory in enumerate(trajectories) for _ in trajectory.turns])
    advantages = returns - _baseline(baseline, returns, prompts, decisions, episodes)
    if normalize:
        advantages = normalized(advantages)
    return [
        StepSample(prompt, decision.index, decision.logprob, advantage, returned)
        for prompt, decision, advantage, returned in zip(
            prompts, decisions, advantages.tolist(), returns.tolist(), strict=True
        )
    ]


def advantages_by_episode(samples: Sequence[StepSample], trajectories: Sequence[Trajectory]) -> list[list[float]]:
    """The advantages of each step of ``trajectories``, of which ``samples`` are the first ``step_samples``."""
    following = iter(samples)
    return [[next(following).advantage for _ in trajectory.turns] for trajectory in trajectories]


def _baseline(
    kind: str, returns: Tensor, prompts: Sequence[Prompt], decisions: Sequence[Decision], episodes: Tensor
) -> Tensor:
    if kind == "none":
        return torch.zeros_like(returns)
    if kind == "batch":
        return returns.mean().expand_as(returns)
    if kind == "value":
        return torch.tensor([decision.value for decision in decisions])
    groups: dict[Prompt, int] = {}
    visited = torch.tensor([groups.setdefault(prompt, len(groups)) for prompt in prompts])
    return leave_one_out(returns, visited, episodes)


def minibatches(
    samples: Sequence[StepSample], *, passes: int, parts: int, rng: random.Random
) -> list[list[StepSample]]:
    """``passes * parts`` minibatches; each pass is a new permutation cut into ``parts`` of nearly equal size.

    With fewer samples than ``parts``, what would be empty is the whole permutation.
    """
    batches = []
    for _ in range(passes):
        order = rng.sample(list(samples), len(samples))
        batches += [order[part::parts] or order for part in range(parts)]
    return batches
