"""Sokoban with one box in a room of 5 by 5 fields, told by rows and columns.

Kind: planning puzzle. Horizon: 25. Hard: a box that is pushed to a wall is lost, though the game goes on; the way
around the box has to be planned; the expert reaches 100 %.
"""

from __future__ import annotations

import random
from collections import deque
from functools import cache

from reflectrl import NatLangEnv, Observation, Outcome, Task

SIZE = 5
MOVES = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
FIELDS = [(row, column) for row in range(SIZE) for column in range(SIZE)]
State = tuple[tuple[int, int], tuple[int, int]]


def move(state: State, action: str) -> State:
    """Return the fields of player and box after an action, which may be without effect."""
    (row, column), box = state
    down, right = MOVES[action]
    there, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
    if there not in FIELDS or (there == box and beyond not in FIELDS):
        return state
    return there, beyond if there == box else box


@cache
def distances(target: tuple[int, int]) -> dict[State, int]:
    """Return the number of steps to the end from each state from which it can be reached."""
    states = [(at, box) for at in FIELDS for box in FIELDS if at != box]
    before: dict[State, list[State]] = {}
    for state in states:
        for action in MOVES:
            before.setdefault(move(state, action), []).append(state)
    found = {state: 0 for state in states if state[1] == target}
    queue = deque(found)
    while queue:
        there = queue.popleft()
        for state in before.get(there, ()):
            if state not in found:
                found[state] = found[there] + 1
                queue.append(state)
    return found


class Sokoban(NatLangEnv):
    """Each step costs 0.01, the box on the target brings 1."""

    name = "sokoban"
    instructions = "Push the box onto the target. You can push, but not pull."
    max_actions = 4

    def __init__(self) -> None:
        super().__init__(horizon=25)
        every = [(at, box, goal) for goal in FIELDS for (at, box), far in distances(goal).items() if 0 < far <= 12]
        tasks = [
            Task(f"{at}-{box}-{target}", {"at": list(at), "box": list(box), "target": list(target)})
            for at, box, target in random.Random(3).sample(sorted(every), 700)
        ]
        self._splits = {"train": tasks[:550], "validation": tasks[550:600], "test": tasks[600:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.state = tuple(task.options["at"]), tuple(task.options["box"])
        self.target = tuple(task.options["target"])

    def observe(self) -> Observation:
        places = {"You are": self.state[0], "The box is": self.state[1], "The target is": self.target}
        return Observation(
            " ".join(f"{who} in row {row + 1}, column {column + 1}." for who, (row, column) in places.items()),
            tuple(MOVES),
        )

    def act(self, action: str) -> Outcome:
        self.state = move(self.state, action)
        done = self.state[1] == self.target
        return Outcome(1.0 if done else -0.01, ended=done, success=done)

    def expert(self) -> str:
        far = distances(self.target)
        return min(MOVES, key=lambda action: far.get(move(self.state, action), 99))
