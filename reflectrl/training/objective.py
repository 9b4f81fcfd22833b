"""The objective of RLFT, a sum of terms: pure functions of tensors with one element per step."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reflectrl.config.advantage import ValueHead
from reflectrl.config.training import PPO, EntropyBonus, EntropyTarget, Reinforce, RLFTSettings, Term
from reflectrl.core import WorkFailed

LOWEST_LOGPROB = -50.0
"""Lower bound to which log-probabilities are clamped in the exact KL divergence, which keeps it finite."""


@dataclass(frozen=True)
class Loss:
    """Loss of N steps and statistics, as sums over the steps, so that those of micro-batches can be added."""

    total: Tensor
    """Sum of the losses, a scalar with gradient."""
    clipped: Tensor
    """Number of steps whose probability ratio left the clip range (0 for REINFORCE)."""
    kl: Tensor
    """Estimate of KL(sampling policy || current policy) in nats, ``(ratio - 1) - log ratio`` (Schulman's k3)."""


MAX_LOG_RATIO = 20.0
"""Bound to which log-ratios are clamped, which keeps ratios finite."""
MAX_RATIO = 10.0
"""Probability ratio above which PPO's clipped surrogate alone counts, so that no single step has a huge loss."""
MAX_GAP = 0.25
"""Maximum mean gap of log-probabilities, as a fraction of PPO's clip range; see ``check_gap``."""


@dataclass(frozen=True)
class Objective:
    """The terms of the objective; absent ones are left out."""

    update: Reinforce | PPO
    value: ValueHead | None = None
    entropy: EntropyBonus | EntropyTarget | None = None
    kl: Term | None = None

    @classmethod
    def of(cls, settings: RLFTSettings, entropy_coef: float | None = None) -> Objective:
        """Return the objective of ``settings``, with the current coefficient of an entropy bonus with a target."""
        entropy = settings.terms.entropy
        if entropy is not None and entropy_coef is not None:
            entropy = replace(entropy, coef=entropy_coef)
        return cls(settings.update, settings.value, entropy, settings.terms.kl)


MAX_SERVED_GAP = 0.05
"""Maximum mean gap of a token's log-probability between a server and this process, in nats; see ``check_gap``."""


def check_gap(update: Reinforce | PPO, gap: float, *, served: bool = False) -> None:
    """Check that rounding errors are small compared to PPO's clip range, for several updates per iteration.

    A server's log-probabilities only tell whether it has the policy's weights: updates use this process's.

    Args:
        update: how the policy is updated.
        gap: mean absolute difference in nats of the log-probabilities in the rollout and before the first update.
        served: whether a server wrote; ``gap`` is then that of its tokens.

    Raises:
        WorkFailed: the gap is larger than the fraction ``MAX_GAP`` of the clip range, or ``MAX_SERVED_GAP``.
    """
    if served:
        if gap > MAX_SERVED_GAP:
            raise WorkFailed(
                f"the log-probabilities of a token by the policy's server and by this process differ by {gap:.2g} on "
                f"average; expected at most {MAX_SERVED_GAP:g}, so the server does not have these weights, computes in "
                "another dtype or has another --logprobs-mode than raw_logprobs: serve the base of model.name with "
                "the --dtype of model.dtype, then continue (the same command)."
            )
        return
    if update.num_iterations * update.num_minibatches > 1 and gap > MAX_GAP * update.epsilon:
        raise WorkFailed(
            f"the log-probabilities at play and before the first update of an iteration differ by {gap:.2g} on "
            f"average, by rounding alone; expected at most {MAX_GAP * update.epsilon:.2g}, a quarter of "
            "rlft.update.epsilon. Set model.compute and model.dtype to float32, or rlft.update.num_iterations and "
            "rlft.update.num_minibatches to 1, in another --run."
        )


def reinforce_losses(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Return the REINFORCE losses ``-A log pi(a|s)`` of the sampled actions (section 3); all tensors are (N,)."""
    return -advantages * logprobs


def ppo_losses(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, epsilon: float) -> Tensor:
    """Return PPO's clipped losses ``-min(ratio A, clip(ratio, 1-eps, 1+eps) A)`` (appendix A); all tensors are (N,).

    Where the ratio is above ``MAX_RATIO``, the loss is ``-clip(ratio, 1-eps, 1+eps) A``, without a gradient.
    """
    ratio = (logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon) * advantages
    return -torch.where(ratio > MAX_RATIO, clipped, torch.min(ratio * advantages, clipped))


def kl_divergences(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Return the (N,) exact KL(policy || reference) over each menu, in nats, from (N, A) log-probabilities.

    Columns beyond a menu have probability 0 in ``logprobs``, so their values in ``reference`` do not matter.
    """
    return (logprobs.exp() * (logprobs.clamp(min=LOWEST_LOGPROB) - reference.clamp(min=LOWEST_LOGPROB))).sum(-1)


def value_losses(values: Tensor, old_values: Tensor, targets: Tensor, clip: float | None) -> Tensor:
    """Return squared errors of the value head, the maximum with those of clipped values (PPO's code); all are (N,)."""
    losses = (values - targets) ** 2
    if clip is None:
        return losses
    return torch.max(losses, (old_values + (values - old_values).clamp(-clip, clip) - targets) ** 2)


def step_losses(
    objective: Objective,
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
    log_ratios: Tensor | None = None,
    replayed: Tensor | None = None,
    masked: Tensor | None = None,
) -> Loss:
    """Return the weighted sum of the terms over N steps, with statistics.

    Replayed steps train the policy's term alone, with a probability ratio of 1. They are successes, so in the value's
    term they would raise the values of their states above the policy's expected return. Self-imitation (Oh et al.,
    2018) fits ``(R - V)+`` of such steps with a small weight, which is biased the same way, if less.

    Args:
        objective: the terms and their coefficients.
        progress: fraction of the updates that are done, on which coefficients depend.
        logprobs: (N,) log-probabilities of the sampled actions under the current policy.
        old_logprobs: (N,) log-probabilities of the sampled actions at sampling time.
        advantages: (N,) advantages of the sampled actions.
        entropies: (N,) entropies of the current policy, in nats.
        values: (N,) current estimates of the value head.
        old_values: (N,) estimates of the value head at sampling time.
        targets: (N,) target returns of the value head.
        divergences: (N,) KL divergences of the current policy from the initial policy, in nats.
        log_ratios: (N,) log-probabilities of all that was sampled, under the current policy less at sampling time,
            for ``Loss.kl``; ``logprobs - old_logprobs`` if absent, which differ where a thought's are weighted.
        replayed: (N,) 1 for steps that an older policy played, else 0; all 0 if absent.
        masked: (N,) 1 for steps whose action is not the policy's, which have an advantage of 0 and no entropy bonus,
            else 0; all 0 if absent.
    """
    replayed = torch.zeros_like(advantages) if replayed is None else replayed
    masked = torch.zeros_like(advantages) if masked is None else masked
    fresh = 1 - replayed
    old_logprobs = torch.where(replayed > 0, logprobs.detach(), old_logprobs)
    if isinstance(objective.update, PPO):
        losses = ppo_losses(logprobs, old_logprobs, advantages, objective.update.epsilon)
    else:
        losses = reinforce_losses(logprobs, advantages)
    if (entropy := objective.entropy) is not None:
        floor = torch.inf if entropy.floor is None else entropy.floor
        losses = losses - entropy.at(progress) * entropies.clamp(max=floor) * fresh * (1 - masked)
    if (head := objective.value) is not None:
        losses = losses + head.coef * value_losses(values, old_values, targets, head.clip) * fresh
    if objective.kl is not None:
        losses = losses + objective.kl.at(progress) * divergences * fresh
    with torch.no_grad():
        distance = ((logprobs - old_logprobs).exp() - 1).abs()
        clipped = distance > objective.update.epsilon
        log_ratios = logprobs - old_logprobs if log_ratios is None else log_ratios
        log_ratios = log_ratios.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) * fresh
        kl = log_ratios.exp() - 1 - log_ratios
    return Loss(losses.sum(), clipped.sum(), kl.sum())
