"""``Divergences``: KL divergences by which an iteration's updates changed the written text and the choice of action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from reflectrl.models.policy import Scores
from reflectrl.training.batch import StepSample
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
