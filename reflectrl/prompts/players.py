"""Protocols of players and policies, which see views: never a reward, nor whether an episode succeeded; and a cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from reflectrl.core import Decision, Trajectory, Utterance
from reflectrl.core.cache import BatchCache
from reflectrl.prompts.prompt import Prompt
from reflectrl.prompts.views import MenuView, View


class Player(Protocol):
    """A frozen player, which writes text about each state, such as a reflection ``R ~ R(p(s))``."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view, in order.

        Args:
            views: the information that the player may use, see ``reflectrl.seats.table``.
            draws: uniform numbers in [0, 1), one per view; the only source of randomness.
        """
        ...


class Policy(Protocol):
    """A policy, which chooses an action ``a ~ pi(. | p(s), R, menu)`` for each state."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one decision per view, in order; equal views and draws give equal actions in any batch."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A player with a state that changes only between iterations of training, by the episodes played in them."""

    @property
    def remembered(self) -> str:
        """State of the player, for a checkpoint."""
        ...

    def remember(self, played: Sequence[Trajectory]) -> None:
        """Update the state with the fresh episodes of an iteration, in the order of processes and episodes."""
        ...

    def restore(self, remembered: str) -> None:
        """Restore the state that a checkpoint saved as ``remembered``."""
        ...


@runtime_checkable
class CountsMisses(Protocol):
    """A player that counts its queries to a model, for the metrics of training."""

    @property
    def misses(self) -> tuple[int, int]:
        """Number of queries so far, and of those to which the model gave nothing usable."""
        ...


class ReadsHints:
    """Marker base class of players that are given the expert's hints, such as the expert itself or a person."""


class CachedPlayer(ABC):
    """A player that calls ``write`` for new prompts only and caches the words of the ``cache_size`` prompts used last.

    The cache is exact only if the words depend on the prompt alone: pass 0 for a player that samples.
    """

    def __init__(self, cache_size: int) -> None:
        self._cache_size = cache_size
        self._cache: BatchCache[Prompt, Utterance] = BatchCache(cache_size)
        self.asked = 0
        """Number of views answered so far."""
        self.written = 0
        """Number of these views whose words were not in the cache."""

    @abstractmethod
    def write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one new utterance per prompt."""

    @property
    def hit_rate(self) -> float:
        """Fraction of the views so far whose words came from the cache."""
        return 1.0 - self.written / self.asked if self.asked else 0.0

    def clear(self) -> None:
        """Empty the cache; needed only if the player's weights change (single player)."""
        self._cache.clear()

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view."""
        return self.answer([view.prompt for view in views], draws)

    def answer(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per prompt; only new prompts are written to."""
        self.asked += len(prompts)
        if self._cache_size == 0:
            return self._write(prompts, draws)
        return self._cache.get(prompts, lambda missing: self._write(missing, [0.0] * len(missing)))

    def _write(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        words = self.write(prompts, draws)
        self.written += len(prompts)
        return words
