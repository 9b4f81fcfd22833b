"""``FilteredCloning``: behaviour cloning of the policy's own successes, an example of a custom method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reflectrl.core import Trajectory
from reflectrl.training.batch import StepSample
from reflectrl.training.rlft import ReflectRLTrainer


class FilteredCloning(ReflectRLTrainer):
    """Trainer that makes each action of a successful episode more probable, and learns nothing from the others.

    Rejection sampling in the loop, as in RAFT (Dong et al., 2023): advantages do not depend on rewards, baseline or
    discount.
    """

    def make_samples(self, fresh: Sequence[Trajectory], replayed: Sequence[Trajectory]) -> list[StepSample]:
        """Return one sample per step with advantage 1 if its episode succeeded, and 0 otherwise."""
        succeeded = [float(episode.success) for episode in [*fresh, *replayed] for _ in episode.turns]
        samples = super().make_samples(fresh, replayed)
        return [replace(sample, advantage=won) for sample, won in zip(samples, succeeded, strict=True)]
