"""``WorkerLimits``: the limits of environments in worker processes, the answer to a failure, and their count.

A plain dataclass, since the command line's help loads no pydantic, which checks a recipe's section ``env``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from reflectrl.core.errors import WorkFailed


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """Limits of an environment in a worker process, and the answer to a failure."""

    deadline_s: Annotated[float, Gt(0.0)] = 60.0
    """Seconds that one request to an environment in a worker process may take; one that takes longer is killed."""
    on_failure: Literal["replay", "drop"] = "replay"
    """After a crash or timeout, play the episode again up to there; RLFT alone may leave it out (drop) instead."""
    max_failures: Annotated[int, Ge(0)] = 20
    """Number of crashes and timeouts that a stage survives."""
    max_memory_mb: Annotated[int, Ge(1)] | None = None
    """Resident memory of a worker process above which an episode begins in a fresh one; twice as much is a failure."""


@dataclass(eq=False)
class FailureCount:
    """Number of failures of a pool's environments, and the limits that they count against."""

    limits: WorkerLimits
    failures: int = 0
    """Requests that failed so far, repeated ones included."""
    recycled: int = 0
    """Processes that were replaced because of their memory so far, which is no failure."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, sentence: str) -> None:
        """Count a failed request.

        Raises:
            WorkFailed: there were too many.

        """
        with self._lock:
            self.failures += 1
            failures = self.failures
        if failures > self.limits.max_failures:
            raise WorkFailed(
                f"environments failed {failures} times; the limit is {self.limits.max_failures}: {sentence}; fix the "
                "environment, or raise max_failures."
            )
