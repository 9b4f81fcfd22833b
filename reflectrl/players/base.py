"""Protocols of players and policies. They see views: never a reward, nor whether an episode succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from reflectrl.core import Decision, Trajectory, Utterance
from reflectrl.prompts.views import MenuView, View

When = Literal["episode_start", "before_act", "after_act", "episode_end"]


class Player(Protocol):
    """Frozen player: writes words about each state, such as a reflection ``R ~ R(p(s))``."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance a view, in order.

        Args:
            views: the information that the player may use, see ``reflectrl.prompts.views``.
            draws: uniform in [0, 1), one a view; all the randomness there is.

        """
        ...


class Policy(Protocol):
    """Chooses an action ``a ~ pi(. | p(s), R, menu)`` for each state."""

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        """Return one decision a view, in order; equal views and draws give equal actions in any batch."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A player that learns from what is played in training, between two batches and in no other way."""

    @property
    def remembered(self) -> str:
        """All that it has learned, for a checkpoint."""
        ...

    def remember(self, played: Sequence[Trajectory]) -> None:
        """Learn from the fresh episodes of an iteration, in the order of processes and episodes."""
        ...

    def restore(self, remembered: str) -> None:
        """Go back to what a checkpoint holds of ``remembered``."""
        ...


class ReadsHints:
    """Base of players that are given the expert's hints: the expert itself, and a person who may ask for them."""


class Informed(ReadsHints):
    """A player that is given the expert's hints, which it is not without this: a corrector with a solver as its tool.

    Args:
        player: whose views hold the hints.

    """

    def __init__(self, player: Player) -> None:
        self._player = player

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the player's words."""
        return self._player.say(views, draws)


@dataclass(frozen=True)
class Seat:
    """A frozen player's place in the turn."""

    role: str
    """One of ``reflectrl.prompts.views.FROZEN_ROLES``; it decides what the player sees and who reads its words."""
    player: Player
    when: When = "before_act"
    """Moment at which it speaks."""


def reflecting(reflector: Player | None) -> tuple[Seat, ...]:
    """Return the seats of Reflect-RL: one reflector, or none for the ablation without reflections."""
    return () if reflector is None else (Seat("reflector", reflector),)
