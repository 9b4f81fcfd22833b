"""A frozen lake of 4 by 4 fields, another one in each task; the four fields around the player are told in words.

Kind: grid, maps differ. Horizon: 20. Hard: the expert sees the whole lake, the text four fields of it. The expert
reaches 100 %; a table over the texts, trained by policy gradients, reached 85 % of the test's lakes.
"""

from __future__ import annotations

import random
from collections import deque
from functools import cache

from reflectrl import NatLangEnv, Observation, Outcome, Task

SIZE = 4
MOVES = {"go north": (-1, 0), "go east": (0, 1), "go south": (1, 0), "go west": (0, -1)}
START, GOAL = (0, 0), (SIZE - 1, SIZE - 1)


def distances(lake: str) -> dict[tuple[int, int], int]:
    """Return the number of steps to the goal from each field from which it can be reached."""
    found = {GOAL: 0}
    queue = deque([GOAL])
    while queue:
        row, column = queue.popleft()
        for down, right in MOVES.values():
            field = row + down, column + right
            if is_on(field) and lake[field[0] * SIZE + field[1]] != "H" and field not in found:
                found[field] = found[row, column] + 1
                queue.append(field)
    return found


def is_on(field: tuple[int, int]) -> bool:
    """Return whether a field is on the lake."""
    return 0 <= field[0] < SIZE and 0 <= field[1] < SIZE


@cache
def _lakes() -> list[str]:
    rng, lakes = random.Random(0), set()
    while len(lakes) < 200:
        fields = rng.choices("FH", (0.75, 0.25), k=SIZE * SIZE)
        fields[0], fields[-1] = "S", "G"
        if START in distances("".join(fields)):
            lakes.add("".join(fields))
    return rng.sample(sorted(lakes), 200)


class FrozenLakeWords(NatLangEnv):
    """Reaching the goal brings 1, a hole ends the game."""

    name = "frozen_lake_words"
    instructions = "Walk over the ice to the goal. A hole ends the game."
    max_actions = 4

    def __init__(self) -> None:
        super().__init__(horizon=20)

    def tasks(self, split: str) -> list[Task]:
        chosen = {"train": slice(0, 100), "validation": slice(100, 140), "test": slice(140, 200)}[split]
        return [Task(lake, {"lake": lake}) for lake in _lakes()[chosen]]

    def start(self, task: Task) -> None:
        self.lake: str = task.options["lake"]
        self.distances = distances(self.lake)
        self.at = START

    def observe(self) -> Observation:
        around = ", ".join(f"{move[3:]} {self._what(self._next(move))}" for move in MOVES)
        row, column = self.at
        down, right = GOAL[0] - row, GOAL[1] - column
        goal = " and ".join([f"{down} south"] * (down > 0) + [f"{right} east"] * (right > 0)) or "here"
        return Observation(f"Around you: {around}. The goal is {goal}.", tuple(MOVES))

    def act(self, action: str) -> Outcome:
        self.at = self._next(action) if is_on(self._next(action)) else self.at
        there = self.lake[self.at[0] * SIZE + self.at[1]]
        return Outcome(float(there == "G"), ended=there in "HG", success=there == "G")

    def expert(self) -> str:
        return min(MOVES, key=lambda move: self.distances.get(self._next(move), 99))

    def _next(self, move: str) -> tuple[int, int]:
        return self.at[0] + MOVES[move][0], self.at[1] + MOVES[move][1]

    def _what(self, field: tuple[int, int]) -> str:
        kinds = {"H": "hole", "G": "goal", "F": "ice", "S": "ice"}
        return kinds[self.lake[field[0] * SIZE + field[1]]] if is_on(field) else "shore"
