"""Playing cards: ranks 1 to 13 from the ace to the king, their names and values. They have no suits."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable

from reflectrl.core import Task

RANKS = range(1, 14)
NAMES = ("A", *map(str, range(2, 11)), "J", "Q", "K")
SHARES = {"train": slice(0, None, 2), "test": slice(1, None, 4), "validation": slice(3, None, 4)}
"""Part of the shuffled deals in each split: half, a quarter, a quarter."""
SHUFFLE = 8
"""Seed with which EZPoints, which has only seven deals, has sums and products both in training and in test."""


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
