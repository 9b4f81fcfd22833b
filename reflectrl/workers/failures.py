"""``Failures``: the number of failures of all environments together, and the limit at which they end the work."""

from __future__ import annotations

from reflectrl.core.errors import WorkFailed
from reflectrl.workers.limits import WorkerLimits


class Failures:
    """Counter of failed requests to environments."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.failures = 0
        """Number of failed requests so far, repeated ones included."""

    def count_failure(self, sentence: str) -> None:
        """Count a failed request, which ``sentence`` describes.

        Raises:
            WorkFailed: there were too many.

        """
        self.failures += 1
        if self.failures > self.limits.max_failures:
            raise WorkFailed(
                f"environments failed {self.failures} times; the limit is {self.limits.max_failures}: {sentence}; "
                "fix the environment, or raise max_failures."
            )
