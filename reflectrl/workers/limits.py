"""``Limits``: what a pool of worker processes puts up with, and what it has put up with so far."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from reflectrl.core.errors import InvalidInput, WorkFailed


@dataclass(eq=False)
class Limits:
    """How failures of environments are met; see ``WorkerPool`` for the fields."""

    deadline_s: float
    on_failure: Literal["replay", "drop"]
    max_failures: int
    max_memory_mb: int | None
    failures: int = 0
    """Calls that failed so far, repeated ones included."""
    recycled: int = 0
    """Processes that were replaced because of their memory so far, which is no failure."""
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.max_memory_mb is not None and not Path("/proc/self/statm").exists():
            raise InvalidInput(
                f"max_memory_mb={self.max_memory_mb} was given, but this system does not tell how much memory a "
                "process uses (no /proc); leave it out."
            )

    @property
    def most_mb(self) -> int | None:
        """Memory at which a process is ended even in the middle of an episode: a failure."""
        return None if self.max_memory_mb is None else 2 * self.max_memory_mb

    def count_failure(self, sentence: str) -> None:
        """Take note of a failure.

        Raises:
            WorkFailed: it is one too many.

        """
        with self._counting:
            self.failures += 1
            failures = self.failures
        if failures > self.max_failures:
            raise WorkFailed(
                f"environments failed {failures} times; the limit is {self.max_failures}: {sentence}; mend the "
                "environment, or raise max_failures."
            )

    def count_recycled(self) -> None:
        """Take note of a process that was replaced."""
        with self._counting:
            self.recycled += 1
