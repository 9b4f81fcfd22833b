"""``NumberLine``: the tutorial environment. The player moves along the numbers until the target is reached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task

UP, DOWN = "add one", "subtract one"


def _splits(size: int) -> dict[str, list[Task]]:
    """Return half of the pairs for training, a quarter for validation and a quarter for test.

    Only a comparison of 4 with 5 shows their order, so no held-out task begins beside its target; the order of all
    others follows from that of neighbours.
    """
    pairs = [(start, target) for start in range(size) for target in range(size) if start != target]
    random.Random(0).shuffle(pairs)
    pairs.sort(key=lambda pair: abs(pair[0] - pair[1]) == 1)  # neighbours last; the others stay shuffled
    tasks = [Task(f"{start}-to-{target}", {"start": start, "target": target}) for start, target in pairs]
    quarter = len(tasks) // 4
    return {"train": tasks[2 * quarter :], "validation": tasks[:quarter], "test": tasks[quarter : 2 * quarter]}


class NumberLine(NatLangEnv):
    """Walk from one number to another, one at a time: -0.05 per step, +1 on the target, at most ``size`` steps.

    The place to try an idea first: it takes seconds from nothing to a report. Half of the pairs of start and target are
    for training. They include all pairs of neighbours, because only these show which of two neighbouring numbers is
    larger. No training episode begins with a pair of the test, but most of these states occur in mid-episode.

    Args:
        size: how many numbers there are, from 0 on; 4 to 500.
    """

    name = "number_line"
    instructions = "Reach the target by adding or subtracting one at a time."
    max_actions = 2
    smallest: ClassVar[int] = 4
    largest: ClassVar[int] = 500

    def __init__(self, size: int = 10) -> None:
        if not isinstance(size, int) or not self.smallest <= size <= self.largest:
            raise InvalidInput(
                f"size={size!r} was given to {self.name!r}; expected {self.smallest} or more numbers, "
                f"{self.largest} at most."
            )
        super().__init__(horizon=size)
        self.size = size
        self._splits = _splits(size)
        self._tasks = {task.id: task for tasks in self._splits.values() for task in tasks}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return all pairs of different numbers, in fixed splits; pairs of neighbours are for training."""
        return self._splits[split]

    def start(self, task: Task) -> None:
        if self._tasks.get(task.id) != task:
            raise InvalidInput(f"task {task.id!r} is not in {self.name!r} of size={self.size}; use env.tasks(split).")
        self.number: int = task.options["start"]
        self.target: int = task.options["target"]

    def observe(self) -> Observation:
        """Return both numbers; no action leads past an end of the line."""
        up = (UP,) if self.number < self.size - 1 else ()
        down = (DOWN,) if self.number > 0 else ()
        return Observation(f"Number {self.number}, target {self.target}.", up + down, common=(UP, DOWN))

    def act(self, action: str) -> Outcome:
        self.number += 1 if action == UP else -1
        reached = self.number == self.target
        return Outcome(reward=1.0 if reached else -0.05, ended=reached, success=reached)

    def expert(self) -> str | None:
        """Return the action towards the target; ``None`` on the target."""
        if self.number == self.target:
            return None
        return UP if self.number < self.target else DOWN

    def reflection(self) -> str | None:
        """Judge the last action and say where the target is; the next action is left to the policy."""
        gap = self.target - self.number
        where = "reached" if gap == 0 else "higher" if gap > 0 else "lower"
        if self.last_action is None:
            return f"The target is {where}."
        return f"{'Mistake' if self.mistaken() else 'Good'}. The target is {where}."

    def mistaken(self) -> bool | None:
        """Return whether the last action led away from the target."""
        if self.last_action is None:
            return None
        return self.number > self.target if self.last_action == UP else self.number < self.target
