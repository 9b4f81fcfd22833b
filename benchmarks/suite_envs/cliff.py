"""A walk along a cliff, after gymnasium's CliffWalking, from random fields to random goals, told in words.

Kind: grid with a trap. Horizon: 30. Hard: rewards are gymnasium's, -1 a step and -100 for a fall, which leads back to
the start; the expert reaches 100 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

ROWS, COLUMNS = 4, 12
MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class Cliff(NatLangEnv):
    """Rows are counted from the top; all of the lowest row but the goal is cliff."""

    name = "cliff"
    instructions = "Walk to the goal. All other fields of the lowest row are the cliff: from there you start again."
    max_actions = 4

    def __init__(self) -> None:
        super().__init__(horizon=30)
        starts = [(row, column) for row in range(ROWS - 1) for column in range(COLUMNS)]
        every = [
            Task(f"{row}-{column}-to-{goal}", {"row": row, "column": column, "goal": goal})
            for row, column in starts
            for goal in range(COLUMNS)
        ]
        random.Random(2).shuffle(every)
        self._splits = {"train": every[:280], "validation": every[280:340], "test": every[340:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.home = self.at = task.options["row"], task.options["column"]
        self.goal = ROWS - 1, task.options["goal"]
        self.fell = False

    def observe(self) -> Observation:
        here = f"You are in row {self.at[0] + 1}, column {self.at[1] + 1}."
        return Observation(f"{here} The goal is in row {ROWS}, column {self.goal[1] + 1}.", tuple(MOVES))

    def act(self, action: str) -> Outcome:
        down, right = MOVES[action]
        self.fell = False
        self.at = min(max(self.at[0] + down, 0), ROWS - 1), min(max(self.at[1] + right, 0), COLUMNS - 1)
        if self.at == self.goal:
            return Outcome(-1.0, ended=True, success=True)
        if self.at[0] < ROWS - 1:
            return Outcome(-1.0)
        self.at, self.fell = self.home, True
        return Outcome(-100.0, illegal=True)

    def expert(self) -> str:
        if self.at[1] == self.goal[1]:
            return "down"
        return "right" if self.at[1] < self.goal[1] else "left"

    def mistaken(self) -> bool | None:
        return True if self.fell else None
