"""``WorkerLimits``: the limits of environments in worker processes, and the answer to a failure.

A plain dataclass, since the command line's help loads no pydantic, which checks a recipe's section ``env``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt


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
