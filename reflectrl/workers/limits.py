"""``WorkerLimits``: the limits of environments in worker processes, and the answer to a failure."""

from __future__ import annotations

from typing import Literal

from reflectrl.core.settings import Count, CountOrZero, Positive, settings


@settings(kw_only=True)
class WorkerLimits:
    """Limits of an environment in a worker process, and the answer to a failure."""

    deadline_s: Positive = 60.0
    """Seconds that one request to an environment in a worker process may take; one that takes longer is killed."""
    on_failure: Literal["replay", "drop"] = "replay"
    """After a crash or timeout, play the episode again up to there; RLFT alone may leave it out (drop) instead."""
    max_failures: CountOrZero = 20
    """Number of crashes and timeouts that a stage survives."""
    max_memory_mb: Count | None = None
    """Resident memory of a worker process above which an episode begins in a fresh one; twice as much is a failure."""
