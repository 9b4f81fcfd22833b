"""Protocols of players and policies, which see views: never a reward, nor whether an episode succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from reflectrl.core import Decision, InvalidInput, Trajectory, Utterance, nearest
from reflectrl.prompts.views import MOMENTS, MenuView, View, When


class Player(Protocol):
    """A frozen player, which writes text about each state, such as a reflection ``R ~ R(p(s))``."""

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return one utterance per view, in order.

        Args:
            views: the information that the player may use, see ``reflectrl.prompts.views``.
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


class Informed(ReadsHints):
    """Wrapper that gives a player the expert's hints: a corrector with the environment's solver as its tool.

    Args:
        player: the player, whose views then contain the hints.

    """

    def __init__(self, player: Player) -> None:
        self._player = player

    @property
    def misses(self) -> tuple[int, int]:
        """Counts of the player, see ``CountsMisses``; 0 for one that counts nothing."""
        return self._player.misses if isinstance(self._player, CountsMisses) else (0, 0)

    def say(self, views: Sequence[View], draws: Sequence[float]) -> list[Utterance]:
        """Return the player's words."""
        return self._player.say(views, draws)


@dataclass(frozen=True)
class Seat:
    """A frozen player with its role in an episode."""

    role: str
    """``planner``, ``memory``, ``reflector``, ``corrector`` or ``rater``; it determines when the player is asked, what
    it sees, and who reads its words (``reflectrl.prompts.views``)."""
    player: Player

    def __post_init__(self) -> None:
        """Check role and player.

        Raises:
            InvalidInput: there is no such role, or the player cannot speak.

        """
        if self.role not in MOMENTS:
            raise InvalidInput(f"a seat was given the role {self.role!r}; {nearest(self.role, MOMENTS)}")
        if isinstance(self.player, type) or not callable(getattr(self.player, "say", None)):
            raise InvalidInput(
                f"the seat of the {self.role} was given {self.player!r}; expected an object with a method "
                "say(views, draws), not a class."
            )

    @property
    def when(self) -> When:
        """Moment of the step or episode at which the player is asked."""
        return MOMENTS[self.role]


def reflecting(reflector: Player | None) -> tuple[Seat, ...]:
    """Return the seats of Reflect-RL: one reflector, or none for the ablation without reflections."""
    return () if reflector is None else (Seat("reflector", reflector),)


def check_roles(seats: Sequence[Seat]) -> None:
    """Check that no role has two players: a step keeps the words of one player of each role.

    Raises:
        InvalidInput: a role has several players.

    """
    roles = [seat.role for seat in seats]
    if several := [role for role in roles if roles.count(role) > 1]:
        raise InvalidInput(
            f"{roles.count(several[0])} players were seated as {several[0]!r}; expected one player a role: let one "
            "player say the words of both, or give the other one another role."
        )


def acting(seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """Return the seats that speak before the policy acts, which is all that play without training needs."""
    return tuple(seat for seat in seats if seat.when in ("episode_start", "before_act"))
