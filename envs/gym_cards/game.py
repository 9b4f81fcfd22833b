"""``Game``: the rules of one of the four games, and the state of one episode of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from numpy.random import Generator

from reflectrl.core import Outcome, Reading, Task
from reflectrl.envs.gym_cards.pictures import Sketch


class Game(ABC):
    """One game. ``GymCards`` counts the steps and says what was a success."""

    instructions: str
    """Rules that a player must know."""
    actions: tuple[str, ...]
    """All actions of the paper, legal or not."""
    horizon: int
    """Steps of an episode at most."""

    @abstractmethod
    def splits(self) -> Mapping[str, tuple[Task, ...]]:
        """Return the tasks of each split, which share no deal."""

    @abstractmethod
    def deal(self, task: Task, rng: Generator) -> None:
        """Set the state to the beginning of ``task``; what it leaves open is drawn."""

    @abstractmethod
    def common(self) -> tuple[str, ...]:
        """Return the actions that may be legal in this episode, now or later."""

    @abstractmethod
    def legal(self) -> tuple[str, ...]:
        """Return those that are legal now: the rules let them be played, wise or not."""

    @abstractmethod
    def play(self, action: str, rng: Generator) -> Outcome:
        """Play one of ``actions``; whether it was a success is left open."""

    @abstractmethod
    def best(self) -> str | None:
        """Return the action that leads to the highest return, ``None`` at the end."""

    @property
    def is_hopeful(self) -> bool:
        """Whether the goal can still be reached."""
        return True

    @abstractmethod
    def mistaken(self) -> bool:
        """Return whether the last action, of which there is one, was worse than ``best``."""

    @abstractmethod
    def standing(self) -> str:
        """Say in words where things stand, as far as one can know who sees the state."""

    @abstractmethod
    def read(self, thought: str) -> Reading:
        """Say whether a thought about the present state, in words like those of ``standing``, is right."""

    @abstractmethod
    def text(self) -> str:
        """Describe the state in words."""

    @abstractmethod
    def sketch(self) -> Sketch:
        """Describe the picture of the state; equal states have equal pictures."""
