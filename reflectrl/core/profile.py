"""``Profile``: where the time of an iteration goes. Nothing is measured unless somebody asked for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

REST = "the rest: optimizer, records, checkpoints"
"""What belongs to no other part."""


@dataclass
class Part:
    """One part of the work."""

    calls: int = 0
    seconds: float = 0.0
    """Wall seconds, without those of the parts within it."""


class Profile:
    """Parts of the work, iteration by iteration."""

    def __init__(self) -> None:
        self.iterations: list[dict[str, Part]] = []
        """Begun in turn, the last perhaps not over; the parts of each add up to its time."""
        self.synchronize: Callable[[], None] = lambda: None
        """Waits until an accelerator is done with what it was given; called where parts begin and end."""
        self._running = [REST]
        self._since = 0.0

    def begin_iteration(self) -> None:
        """What comes next belongs to another iteration."""
        self._count()
        self.iterations.append({})

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What happens within belongs to part ``name``."""
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
            part = self.iterations[-1].setdefault(self._running[-1], Part())
            part.seconds += now - self._since
            part.calls += calls
        self._since = now


_active: ContextVar[Profile | None] = ContextVar("profile", default=None)


@contextmanager
def profiling() -> Iterator[Profile]:
    """Measure what happens within."""
    profile = Profile()
    token = _active.set(profile)
    try:
        yield profile
    finally:
        _active.reset(token)


def active_profile() -> Profile | None:
    """The profile that is being made, if any."""
    return _active.get()


@contextmanager
def part(name: str) -> Iterator[None]:
    """What happens within belongs to part ``name`` of the profile, if one is being made."""
    profile = _active.get()
    if profile is None:
        yield
    else:
        with profile.part(name):
            yield
