"""The tasks of the shop: instructions that a careful customer can fulfil in time, divided among the splits."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cache

from reflectrl.core import Task
from reflectrl.envs.shop.expert import outlook
from reflectrl.envs.shop.goals import Goal, all_goals
from reflectrl.envs.shop.kinds import KINDS
from reflectrl.envs.shop.pages import State, after

HORIZON = 15
"""Number of steps of an episode, as in RAP (arXiv 2402.03610)."""
SHARES = {"train": (0.0, 0.6), "validation": (0.6, 0.75), "test": (0.75, 1.0)}
"""Part of the shuffled tasks in each split."""


@cache
def goals() -> Mapping[str, Goal]:
    """Return the goal of each task by id, in a fixed random order."""
    reached = [goal for goal in all_goals() if _in_time(goal)]
    random.Random(0).shuffle(reached)
    return {"_".join(goal.query.split()): goal for goal in reached}


@cache
def splits() -> Mapping[str, tuple[Task, ...]]:
    """Return the tasks of each split. A combination of kind and attributes is in one split only."""
    departments = {kind.name: kind.department for kind in KINDS}
    tasks = [Task(id, {"group": departments[goal.kind]}) for id, goal in goals().items()]
    count = len(tasks)
    return {split: tuple(tasks[int(first * count) : int(last * count)]) for split, (first, last) in SHARES.items()}


def _in_time(goal: Goal) -> bool:
    """Return whether the expert, who has to search for the product, buys it within the horizon."""
    state = State(goal)
    for _ in range(HORIZON):
        state = after(state, outlook(state).actions[0])
        if state.bought:
            return state.score == 1
    return False
