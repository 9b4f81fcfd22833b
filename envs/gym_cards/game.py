"""``Game``: the rules of one of the four games, and the state of one episode of it; cards, which have no suits."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping

from numpy.random import Generator

from reflectrl.core import Outcome, Reading, Task
from reflectrl.envs.gym_cards.pictures import Sketch

RANKS = range(1, 14)
"""Ranks of playing cards, from the ace to the king."""
NAMES = ("A", *map(str, range(2, 11)), "J", "Q", "K")
SHARES = {"train": slice(0, None, 2), "test": slice(1, None, 4), "validation": slice(3, None, 4)}
"""Part of the shuffled deals in each split: half, a quarter, a quarter."""
SHUFFLE = 8
"""Seed with which EZPoints, which has only seven deals, has sums and products both in training and in test."""


class Game(ABC):
    """Base class of the games. ``GymCards`` counts the steps and decides on success."""

    instructions: str
    """Instructions of the environment, shown to the player."""
    actions: tuple[str, ...]
    """All actions of the paper, legal or not."""
    horizon: int
    """Maximum number of steps of an episode."""

    @abstractmethod
    def splits(self) -> Mapping[str, tuple[Task, ...]]:
        """Return the tasks of each split, which share no deal."""

    @abstractmethod
    def deal(self, task: Task, rng: Generator) -> None:
        """Set the state to the beginning of ``task``; whatever the task leaves open is drawn."""

    @abstractmethod
    def common(self) -> tuple[str, ...]:
        """Return the actions that may be legal in this episode, now or later."""

    @abstractmethod
    def legal(self) -> tuple[str, ...]:
        """Return the actions that are legal now, whether they are wise or not."""

    @abstractmethod
    def play(self, action: str, rng: Generator) -> Outcome:
        """Play one of ``actions``; the outcome does not say whether the game was a success."""

    @abstractmethod
    def best(self) -> str | None:
        """Return the action with the highest return; ``None`` at the end."""

    @property
    def is_hopeful(self) -> bool:
        """True if the goal can still be reached."""
        return True

    @abstractmethod
    def mistaken(self) -> bool:
        """Return whether the last action was worse than ``best``; there must be one."""

    @abstractmethod
    def standing(self) -> str:
        """Describe the situation, from what the visible state shows."""

    @abstractmethod
    def read(self, thought: str) -> Reading:
        """Return whether a thought about the present state, in words like those of ``standing``, is right."""

    @abstractmethod
    def text(self) -> str:
        """Describe the state in words."""

    @abstractmethod
    def sketch(self) -> Sketch:
        """Describe the picture of the state; equal states have equal pictures."""


def value(rank: int) -> int:
    """Return 1 for an ace, 10 for ten, jack, queen and king, and the number of any other card."""
    return min(rank, 10)


def names(ranks: Iterable[int]) -> tuple[str, ...]:
    """Return the names on the cards."""
    return tuple(NAMES[rank - 1] for rank in ranks)


def shared_out(deals: Iterable[tuple[Hashable, Task]]) -> dict[str, tuple[Task, ...]]:
    """Return the tasks of each split, where tasks with equal deals (first of each pair) share a split."""
    tasks: dict[Hashable, list[Task]] = {}
    for deal, task in deals:
        tasks.setdefault(deal, []).append(task)
    order = list(tasks)
    random.Random(SHUFFLE).shuffle(order)
    return {split: tuple(task for deal in order[share] for task in tasks[deal]) for split, share in SHARES.items()}
