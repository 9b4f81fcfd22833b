"""A field of 7 by 7 on which one step in five goes in a random direction, told by coordinates.

Kind: grid, noisy actions. Horizon: 20. Hard: a good action can lead away from the flag; the expert reaches at least
95 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

SIZE = 7
MOVES = {"north": (0, 1), "east": (1, 0), "south": (0, -1), "west": (-1, 0)}
SLIP = 0.2


class NoisyGrid(NatLangEnv):
    """Each step costs 0.05, the flag brings 1."""

    name = "noisy_grid"
    instructions = "Walk to the flag; y grows to the north."
    max_actions = 4

    def __init__(self) -> None:
        super().__init__(horizon=20)
        fields = [(x, y) for x in range(SIZE) for y in range(SIZE)]
        pairs = [(at, flag) for at in fields for flag in fields if abs(at[0] - flag[0]) + abs(at[1] - flag[1]) > 4]
        tasks = [
            Task(f"{at[0]}{at[1]}-{flag[0]}{flag[1]}", {"at": list(at), "flag": list(flag)})
            for at, flag in random.Random(9).sample(pairs, 500)
        ]
        self._splits = {"train": tasks[:350], "validation": tasks[350:400], "test": tasks[400:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.x, self.y = task.options["at"]
        self.flag = tuple(task.options["flag"])

    def observe(self) -> Observation:
        return Observation(f"You: x={self.x}, y={self.y}. Flag: x={self.flag[0]}, y={self.flag[1]}.", tuple(MOVES))

    def act(self, action: str) -> Outcome:
        if self.np_random.random() < SLIP:
            action = list(MOVES)[self.np_random.integers(len(MOVES))]
        east, north = MOVES[action]
        self.x = min(max(self.x + east, 0), SIZE - 1)
        self.y = min(max(self.y + north, 0), SIZE - 1)
        reached = (self.x, self.y) == self.flag
        return Outcome(1.0 if reached else -0.05, ended=reached, success=reached)

    def expert(self) -> str:
        east, north = self.flag[0] - self.x, self.flag[1] - self.y
        if abs(east) > abs(north):
            return "east" if east > 0 else "west"
        return "north" if north > 0 else "south"

    def mistaken(self) -> bool | None:
        return None  # whoever slipped made no mistake
