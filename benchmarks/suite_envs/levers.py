"""Three doors with signs, and a corridor after each; a prize at the end of the last, if every lever was the right one.

Kind: delayed reward, no teacher. Horizon: 25. Hard: 25 actions come before the only reward, and 22 of them do nothing;
random play reaches 12 %.
"""

from __future__ import annotations

import itertools
import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

SIGNS = {"red": "pull left", "green": "pull right", "white": "pull left", "black": "pull right"}
DOORS = (0, 8, 16)


class Levers(NatLangEnv):
    """1 after the last step, if every lever was right."""

    name = "levers"
    instructions = "At each door, the colour of the sign says which lever to pull."
    max_actions = 2

    def __init__(self) -> None:
        super().__init__(horizon=25)
        every = [
            Task("-".join((*signs, metal)), {"signs": list(signs), "metal": metal})
            for signs in itertools.product(SIGNS, repeat=3)
            for metal in ("brass", "iron", "steel")
        ]
        random.Random(7).shuffle(every)
        self._splits = {"train": every[:100], "validation": every[100:130], "test": every[130:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.signs, self.metal = task.options["signs"], task.options["metal"]
        self.right = True

    def observe(self) -> Observation:
        if self.steps in DOORS:
            sign = self.signs[DOORS.index(self.steps)]
            return Observation(f"A door of {self.metal} with a {sign} sign.", ("pull left", "pull right"))
        return Observation("A corridor.", ("walk", "run"))

    def act(self, action: str) -> Outcome:
        step = self.steps - 1
        if step in DOORS:
            self.right &= action == SIGNS[self.signs[DOORS.index(step)]]
        ended = self.steps == self.horizon
        return Outcome(float(ended and self.right), ended=ended, success=ended and self.right)
