"""The policy-gradient loss: pure functions of tensors, one element a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Objective:
    """Weights of the terms at one update."""

    epsilon: float | None
    """PPO clip range; ``None`` for REINFORCE."""
    entropy_coef: float
    """Weight of the entropy bonus."""
    value_coef: float
    """Weight of the value head's squared error; 0 without a value head."""


@dataclass(frozen=True)
class Loss:
    """Loss of N steps, and what to watch. All of them are sums over the steps, so that micro-batches add up."""

    total: Tensor
    """Scalar with gradient."""
    clipped: float
    """Steps whose probability ratio left the clip range (0 for REINFORCE)."""
    kl: float
    """Estimate of KL(sampling policy || present policy) in nats, ``(ratio - 1) - log ratio`` (Schulman's k3)."""


def policy_term(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon: float | None) -> Tensor:
    """(N,) losses of the sampled actions.

    REINFORCE (section 3): ``-A log pi(a|s)``. With ``epsilon`` the clipped surrogate of PPO (appendix A):
    ``-min(ratio A, clip(ratio, 1-eps, 1+eps) A)`` with ``ratio = pi / pi_old``.
    """
    if epsilon is None:
        return -advantages * logprobs
    ratio = (logprobs - old_logprobs).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)


def step_losses(
    objective: Objective,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    entropies: Tensor,
    values: Tensor,
    returns: Tensor,
) -> Loss:
    """Sum over N steps of policy term, entropy bonus and value error; all arguments are (N,)."""
    terms = policy_term(logprobs, old_logprobs, advantages, objective.epsilon)
    terms = terms - objective.entropy_coef * entropies + objective.value_coef * (values - returns) ** 2
    with torch.no_grad():
        log_ratio = logprobs - old_logprobs
        ratio = log_ratio.exp()
        outside = 0.0 if objective.epsilon is None else float(((ratio - 1).abs() > objective.epsilon).sum())
        kl = float((ratio - 1 - log_ratio).sum())
    return Loss(terms.sum(), outside, kl)
