"""A buffer of worthwhile episodes that are replayed at later updates of the same curriculum stage (section 4.4)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator

from reflectrl.core import Trajectory


class ReplayBuffer:
    """The newest ``size`` worthwhile episodes; none with size 0."""

    def __init__(self, size: int) -> None:
        self._kept: deque[Trajectory] = deque(maxlen=size)

    def extend(self, trajectories: Iterable[Trajectory]) -> None:
        """Keep ``trajectories``; the oldest make room."""
        self._kept.extend(trajectories)

    def clear(self) -> None:
        """Forget all episodes."""
        self._kept.clear()

    def sample(self, count: int, rng: random.Random) -> list[Trajectory]:
        """Return at most ``count`` different episodes."""
        return rng.sample(list(self._kept), min(count, len(self._kept)))

    def __iter__(self) -> Iterator[Trajectory]:
        """Iterate over the episodes, oldest first."""
        return iter(self._kept)
