"""``WorkerLimits``: the limits of environments in worker processes, and the answer to a failure.

It is a plain dataclass, so that the command line's help need not load pydantic, which checks a recipe's section
``env``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt

from reflectrl.core.errors import WorkFailed


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """Limits of environments in worker processes or in this one, and the answer to a failure."""

    deadline_s: Annotated[float, Gt(0.0)] = 60.0
    """Maximum duration in seconds of a request to an environment. A worker process is then killed, which is a failure;
    in the main process (``workers: 0``), an alarm ends the step where ``on_failure`` is drop; else a line names it."""
    on_failure: Literal["replay", "drop"] = "replay"
    """Answer to a failure: replay the episode up to that step (in the main process, stop the work), or (in RLFT only)
    drop the episode."""
    max_failures: Annotated[int, Ge(0)] = 20
    """Number of failures that a stage tolerates."""
    max_memory_mb: Annotated[int, Ge(1)] | None = None
    """Resident memory of a worker process, in MB, above which the next episode begins in a new process; twice as much
    is a failure."""


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
