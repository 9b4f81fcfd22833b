"""The objective of RLFT, a sum of terms: pure functions of tensors, one element a step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reflectrl.config.rlft import Terms
from reflectrl.core import WorkFailed

LOWEST_LOGPROB = -50.0
"""Log-probabilities below count as this one, so that the KL divergence of certain choices stays finite."""


@dataclass(frozen=True)
class Loss:
    """Loss of N steps, and what to watch. All of them are sums over the steps, so that micro-batches add up."""

    total: Tensor
    """Scalar with gradient."""
    clipped: Tensor
    """Number of steps whose probability ratio left the clip range (0 for REINFORCE)."""
    kl: Tensor
    """Estimate of KL(sampling policy || present policy) in nats, ``(ratio - 1) - log ratio`` (Schulman's k3)."""


MAX_GAP = 0.25
"""Largest mean gap of log-probabilities, see ``check_gap``, as a fraction of PPO's clip range."""


def check_gap(terms: Terms, gap: float, updates: int) -> None:
    """Check that PPO with several updates an iteration does not clip what is rounding.

    Args:
        terms: the terms of the objective.
        gap: mean distance in nats of the log-probabilities at play from those before the first update.
        updates: updates an iteration.

    Raises:
        WorkFailed: the gap is more than ``MAX_GAP`` of the clip range.

    """
    if updates > 1 and terms.ppo is not None and gap > MAX_GAP * terms.ppo.epsilon:
        raise WorkFailed(
            f"the log-probabilities at play and before the first update of an iteration differ by {gap:.2g} on "
            f"average, by rounding alone; expected at most {MAX_GAP * terms.ppo.epsilon:.2g}, a quarter of "
            "rlft.terms.ppo.epsilon. Set model.compute and model.dtype to float32, or rlft.num_iterations and "
            "rlft.num_minibatches to 1, in another --run."
        )


def reinforce_losses(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """REINFORCE (section 3): ``-A log pi(a|s)`` of the sampled actions; all (N,)."""
    return -advantages * logprobs


def ppo_losses(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Clipped surrogate of PPO (appendix A), ``-min(ratio A, clip(ratio, 1-eps, 1+eps) A)``; all (N,)."""
    ratio = (logprobs - old_logprobs).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)


def kl_divergences(logprobs: Tensor, reference: Tensor) -> Tensor:
    """KL(policy || reference) in nats, (N,), exact over menus; both (N, A) log-probabilities, beyond menus anything."""
    return (logprobs.exp() * (logprobs.clamp(min=LOWEST_LOGPROB) - reference.clamp(min=LOWEST_LOGPROB))).sum(-1)


def value_losses(values: Tensor, old_values: Tensor, targets: Tensor, clip: float | None) -> Tensor:
    """Squared errors of the value head, the larger of those of value and clipped value (as in PPO's code); all (N,)."""
    losses = (values - targets) ** 2
    if clip is None:
        return losses
    return torch.max(losses, (old_values + (values - old_values).clamp(-clip, clip) - targets) ** 2)


def step_losses(
    terms: Terms,
    progress: float,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    entropies: Tensor,
    values: Tensor,
    old_values: Tensor,
    targets: Tensor,
    divergences: Tensor,
) -> Loss:
    """Sum the terms over N steps.

    Args:
        terms: the terms and their coefficients.
        progress: fraction of the updates that are done, on which coefficients depend.
        logprobs: (N,) of the sampled actions under the present policy.
        old_logprobs: (N,) of the sampled actions when they were sampled.
        advantages: (N,) of the sampled actions.
        entropies: (N,) nats, of the present policy.
        values: (N,) estimates of the value head.
        old_values: (N,) its estimates when the actions were sampled.
        targets: (N,) returns that it learns.
        divergences: (N,) nats, KL divergences of the present policy from the one that training began with.

    """
    if terms.ppo is not None:
        losses = ppo_losses(logprobs, old_logprobs, advantages, terms.ppo.epsilon)
    else:
        losses = reinforce_losses(logprobs, advantages)
    losses = terms.policy.at(progress) * losses
    if terms.entropy is not None:
        floor = torch.inf if terms.entropy.floor is None else terms.entropy.floor
        losses = losses - terms.entropy.at(progress) * entropies.clamp(max=floor)
    if terms.value is not None:
        losses = losses + terms.value.at(progress) * value_losses(values, old_values, targets, terms.value.clip)
    if terms.kl is not None:
        losses = losses + terms.kl.at(progress) * divergences
    with torch.no_grad():
        log_ratio = logprobs - old_logprobs
        ratio = log_ratio.exp()
        clipped = (ratio - 1).abs() > (torch.inf if terms.ppo is None else terms.ppo.epsilon)
        kl = ratio - 1 - log_ratio
    return Loss(losses.sum(), clipped.sum(), kl.sum())
