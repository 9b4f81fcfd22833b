"""``GrowingMemory``: a memory that adds successful episodes while a policy is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reflectrl.core import Trajectory
from reflectrl.memory.experience import Experience
from reflectrl.memory.player import KeySource, KeyWriter, Memory
from reflectrl.memory.retriever import Retriever
from reflectrl.memory.store import EpisodeStore


class GrowingMemory(Memory):
    """A memory whose store grows between batches; a batch retrieves only from the batches before it.

    Args:
        store: past episodes, which ``remember`` adds to.
        retriever_of: makes a retriever from a snapshot of the store; called with each new snapshot.
        key: see ``Memory``.
        planner: see ``Memory``.
        max_chars: see ``Memory``.

    """

    def __init__(
        self,
        store: EpisodeStore,
        retriever_of: Callable[[Sequence[Experience]], Retriever],
        *,
        key: KeySource = "observation",
        planner: KeyWriter | None = None,
        max_chars: int = 2000,
    ) -> None:
        first = retriever_of(store.snapshot())
        super().__init__(first, key=key, planner=planner, max_chars=max_chars)
        self._store = store
        self._retriever_of = retriever_of

    def remember(self, played: Sequence[Trajectory]) -> None:
        """Add the episodes of a batch to the store; those that it keeps can be retrieved from now on."""
        if any([self._store.add(trajectory) for trajectory in played]):
            self.retriever = self._retriever_of(self._store.snapshot())

    @property
    def remembered(self) -> str:
        """Text of the store's file."""
        return self._store.text

    def restore(self, remembered: str) -> None:
        """Restore the store's file from its text; episodes added since are dropped."""
        self._store.restore(remembered)
        self.retriever = self._retriever_of(self._store.snapshot())
