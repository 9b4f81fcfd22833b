"""Comparison of the first states of tasks: tasks that begin alike are one task to a player that sees only the state."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core.env import NatLangEnv
from reflectrl.core.text import counted
from reflectrl.core.types import Task

COMPARED = 48
"""Maximum number of tasks of a split whose first states are compared: a reset may take a second."""


REMEDY = (
    "Unless what differs is hidden at first, results on such tasks say little about new states: vary the start with "
    "the task in start(), choose options that do, or keep tasks that begin alike in one split."
)


def spread(tasks: Sequence[Task], most: int = COMPARED) -> list[Task]:
    """Return ``most`` of the tasks at equal distances, or all if they are fewer."""
    count = min(len(tasks), most)
    return [tasks[number * len(tasks) // count] for number in range(count)]


def shared_starts(env: NatLangEnv, most: int = COMPARED) -> list[str]:
    """Return a sentence for each split with tasks that begin like a training task, and one on what to do.

    Up to ``most`` tasks of each split are compared.
    """
    trained = spread(env.split_tasks("train"), most)
    known: dict[tuple[str, ...], str] = {}
    for task in trained:
        known.setdefault(_start(env, task), task.id)
    said = []
    for split in env.splits[1:]:
        tasks = spread(env.any_tasks(split), most)
        alike = [(task.id, known[start]) for task in tasks if (start := _start(env, task)) in known]
        if alike:
            held_out, like = alike[0]
            said.append(
                f"{len(alike)} of {len(tasks)} {split} tasks that were compared begin like one of {len(trained)} "
                f"training tasks, which have {counted(len(known), 'first state')}; {held_out!r} like {like!r}."
            )
    return [*said, REMEDY] if said else []


def _start(env: NatLangEnv, task: Task) -> tuple[str, ...]:
    env.reset(seed=0, options={"task": task})
    return env.observation.shown
