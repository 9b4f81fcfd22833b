"""``Profile``: wall time of the parts of an iteration, measured on request only.

``torch.profiler.record_function`` is not used: core loads no torch, and torch's profiler records every operator, with
an overhead larger than an iteration's parts for a small model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

REST = "the rest: optimizer, records, checkpoints"
"""Name of the part that holds all other work."""


@dataclass
class Timed:
    """One part of the work."""

    calls: int = 0
    seconds: float = 0.0
    """Wall time in seconds, without that of nested parts."""


class Profile:
    """Wall time of the parts of each iteration."""

    def __init__(self) -> None:
        self.iterations: list[dict[str, Timed]] = []
        """Parts of each iteration by name, whose seconds add up to its wall time; the last one may be unfinished."""
        self.synchronize: Callable[[], None] = lambda: None
        """Function that waits for an accelerator's pending work; called where parts begin and end."""
        self._running = [REST]
        self._since = 0.0

    def begin_iteration(self) -> None:
        """Start the next iteration."""
        self._count()
        self.iterations.append({})

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the work in the ``with`` block as part ``name``."""
        self._count()
        self._running.append(name)
        try:
            yield
        finally:
            self._count(calls=1)
            self._running.pop()

    def _count(self, calls: int = 0) -> None:
        self.synchronize()
        now = time.perf_counter()
        if self.iterations:
            part = self.iterations[-1].setdefault(self._running[-1], Timed())
            part.seconds += now - self._since
            part.calls += calls
        self._since = now


_active: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def profiling() -> Iterator[Profile]:
    """Measure the work in the ``with`` block."""
    profile = Profile()
    token = _active.set(profile)
    try:
        yield profile
    finally:
        _active.reset(token)


def active_profile() -> Profile | None:
    """Return the active profile, if any."""
    return _active.get()


@contextmanager
def part(name: str) -> Iterator[None]:
    """Count the work in the ``with`` block as part ``name`` of the active profile, if there is one."""
    profile = _active.get()
    if profile is None:
        yield
    else:
        with profile.part(name):
            yield
