"""``NumberLine`` of gym_cards: move from one number between 0 and 5 to another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import permutations

from numpy.random import Generator

from reflectrl.core import Outcome, Reading, Task
from reflectrl.envs.gym_cards.game import PAPER, Game, Sketch, Words, shared_out

SIDES = {"higher": "+", "lower": "-"}
"""Words for the side of the target, with the action towards it."""
LAST = 5
"""The highest number; the lowest is 0."""


class NumberLine(Game):
    """+1 on the target; -1 for a move that leads no nearer, such as one against an end of the line; 0 otherwise."""

    instructions = (
        "Reach the target number: - subtracts one from the current number, + adds one. The numbers go from 0 to 5. A "
        "move that leads no nearer loses the game."
    )
    actions = ("-", "+")
    horizon = 10

    def splits(self) -> Mapping[str, tuple[Task, ...]]:
        """Return all pairs of different numbers; neighbours, which alone define the order, are for training."""
        pairs = [((a, b), Task(f"{a}-to-{b}", {"start": a, "target": b})) for a, b in permutations(range(LAST + 1), 2)]
        near = [task for (a, b), task in pairs if abs(a - b) == 1]
        shared = shared_out(((a, b), task) for (a, b), task in pairs if abs(a - b) > 1)
        return {**shared, "train": (*shared["train"], *near)}

    def deal(self, task: Task, rng: Generator) -> None:  # noqa: ARG002 - nothing is left open
        self._number: int = task.options["start"]
        self._target: int = task.options["target"]

    def common(self) -> tuple[str, ...]:
        return self.actions

    def legal(self) -> tuple[str, ...]:
        """Return the actions that do not lead past an end of the line."""
        return ("-",) * (self._number > 0) + ("+",) * (self._number < LAST)

    def play(self, action: str, rng: Generator) -> Outcome:  # noqa: ARG002 - nothing is drawn
        illegal, before = action not in self.legal(), self._left
        self._number += 0 if illegal else 1 if action == "+" else -1
        self._strayed = self._left >= before
        reached = self._left == 0
        return Outcome(1.0 if reached else -1.0 if self._strayed else 0.0, ended=reached, illegal=illegal)

    def best(self) -> str | None:
        return None if self._left == 0 else "+" if self._number < self._target else "-"

    def mistaken(self) -> bool:
        return self._strayed

    def standing(self) -> str:
        side = next((side for side, action in SIDES.items() if action == self.best()), "reached")
        return f"The target is {side}."

    def read(self, thought: str) -> Reading:
        """Check that the thought names the right side and, if it names numbers, the right ones."""
        words = thought.casefold()
        named = [action for side, action in SIDES.items() if re.search(rf"\b{side}\b", words)]
        called = named[0] if len(named) == 1 else None
        numbers = {"target": self._target, "current": self._number}
        misread = any(int(n) != numbers[name] for name, n in re.findall(r"\b(target|current)\b[^\d.]*(\d{1,9})", words))
        return Reading(called == self.best() and not misread, called)

    def text(self) -> str:
        return f"Target number: {self._target}. Current number: {self._number}."

    def sketch(self) -> Sketch:
        """Return a picture of both numbers, as large as in the paper."""
        target, current = f"Target: {self._target}", f"Current: {self._number}"
        return Sketch(PAPER, (Words(target, 30, 60, 36), Words(current, 30, 180, 36)))

    @property
    def _left(self) -> int:
        return abs(self._target - self._number)
