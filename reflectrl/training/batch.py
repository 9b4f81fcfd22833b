"""From episodes to the samples of an update: (prompt, one token, advantage)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.core import Trajectory
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
    values: Callable[[Sequence[Prompt]], Tensor],
) -> list[StepSample]:
    """All steps of ``trajectories`` with their advantages; ``values`` is asked only for ``baseline="value"``."""
    prompts = [policy for trajectory in trajectories for _, policy in prompts_of(trajectory, layout)]
    returns = torch.cat([rewards_to_go(trajectory.rewards, gamma) for trajectory in trajectories])
    advantages = returns - _baseline(baseline, returns, prompts, values)
    if normalize:
        advantages = normalized(advantages)
    decisions = [turn.decision for trajectory in trajectories for turn in trajectory.turns]
    return [
        StepSample(prompt, decision.index, decision.logprob, advantage, returned)
        for prompt, decision, advantage, returned in zip(
            prompts, decisions, advantages.tolist(), returns.tolist(), strict=True
        )
    ]


def _baseline(
    kind: str, returns: Tensor, prompts: Sequence[Prompt], values: Callable[[Sequence[Prompt]], Tensor]
) -> Tensor:
    if kind == "none":
        return torch.zeros_like(returns)
    if kind == "batch":
        return returns.mean().expand_as(returns)
    if kind == "value":
        return values(prompts)
    groups: dict[Prompt, int] = {}
    return leave_one_out(returns, torch.tensor([groups.setdefault(prompt, len(groups)) for prompt in prompts]))


def minibatches(
    samples: Sequence[StepSample], *, passes: int, parts: int, rng: random.Random
) -> list[list[StepSample]]:
    """``passes * parts`` minibatches; each pass is a new permutation cut into ``parts`` of nearly equal size."""
    batches = []
    for _ in range(passes):
        order = rng.sample(list(samples), len(samples))
        batches += [order[part::parts] for part in range(parts)]
    return batches
