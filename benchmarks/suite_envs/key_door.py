"""A room of 5 by 5 fields with a key and a locked door in the right wall, all places told as coordinates.

Kind: grid, two goals in a row. Horizon: 30. Hard: numbers have to be compared, and the goal changes once the key is
taken; the expert reaches 100 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

SIZE = 5
MOVES = {"go left": (-1, 0), "go right": (1, 0), "go up": (0, -1), "go down": (0, 1)}
TAKE, OPEN = "take the key", "open the door"


def _tasks() -> list[Task]:
    rng = random.Random(1)
    places = [(x, y) for x in range(1, SIZE + 1) for y in range(1, SIZE + 1)]
    rooms = [(at, key, (SIZE, y)) for at in places for key in places for y in range(1, SIZE + 1) if at != key]
    return [
        Task("-".join(f"{x}{y}" for x, y in room), dict(zip(("at", "key", "door"), map(list, room), strict=True)))
        for room in rng.sample(rooms, 300)
    ]


class KeyDoor(NatLangEnv):
    """Each step costs 0.02, the open door brings 1; the wrong place for taking or opening costs 0.1."""

    name = "key_door"
    instructions = "Fetch the key, bring it to the door and open it."
    max_actions = 6

    def __init__(self) -> None:
        super().__init__(horizon=30)
        tasks = _tasks()
        self._splits = {"train": tasks[:200], "validation": tasks[200:240], "test": tasks[240:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.at, self.key, self.door = (tuple(task.options[thing]) for thing in ("at", "key", "door"))
        self.carried = False

    def observe(self) -> Observation:
        key = "You carry the key" if self.carried else "The key is at ({}, {})".format(*self.key)
        here, door = "({}, {})".format(*self.at), "({}, {})".format(*self.door)
        return Observation(f"You are at {here}. {key}. The door is at {door}.", (*MOVES, TAKE, OPEN))

    def act(self, action: str) -> Outcome:
        if action == OPEN and self.carried and self.at == self.door:
            return Outcome(1.0, ended=True, success=True)
        if action in MOVES:
            x, y = self.at[0] + MOVES[action][0], self.at[1] + MOVES[action][1]
            self.at = min(max(x, 1), SIZE), min(max(y, 1), SIZE)
            return Outcome(-0.02)
        if action == TAKE and self.at == self.key and not self.carried:
            self.carried = True
            return Outcome(-0.02)
        return Outcome(-0.1, illegal=True)

    def expert(self) -> str:
        x, y = self.door if self.carried else self.key
        if self.at[0] != x:
            return "go right" if self.at[0] < x else "go left"
        if self.at[1] != y:
            return "go down" if self.at[1] < y else "go up"
        return OPEN if self.carried else TAKE

    def reflection(self) -> str:
        x, y = self.door if self.carried else self.key
        across = "left" if x < self.at[0] else "right" if x > self.at[0] else "in this column"
        along = "up" if y < self.at[1] else "down" if y > self.at[1] else "in this row"
        return f"The {'door' if self.carried else 'key'} is {across}, {along}."
