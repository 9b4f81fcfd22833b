"""A maze of hedges, another one in each task, told in words from where the player stands; bells tell where its gate is.

Kind: exploration, hidden map, no expert. Horizon: 30. Hard: the way has to be found among loops and dead ends, with
what the text tells of earlier visits.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

SIZE, GAPS = 5, 3
WAYS = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0)}
BACK = {"north": "south", "south": "north", "east": "west", "west": "east"}
PLACES = [(x, y) for x in range(SIZE) for y in range(SIZE)]


def beyond(place: tuple[int, int], way: str) -> tuple[int, int]:
    """Return the place that a way leads to from another."""
    return place[0] + WAYS[way][0], place[1] + WAYS[way][1]


class HedgeMaze(NatLangEnv):
    """The gate brings 1, each other step costs 0.02."""

    name = "hedge_maze"
    instructions = "Find the gate of the maze."
    max_actions = len(WAYS)
    observable = False  # the map is hidden

    def __init__(self) -> None:
        super().__init__(horizon=30)
        every = [Task(f"maze-{number}", {"maze": number}) for number in range(400)]
        self._splits = {"train": every[:240], "validation": every[240:300], "test": every[300:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        rng = random.Random(task.options["maze"])
        self.ways: dict[tuple[int, int], set[str]] = {place: set() for place in PLACES}
        path = [rng.choice(PLACES)]
        seen = {path[0]}
        while path:  # the hedges leave long corridors
            free = [way for way in WAYS if beyond(path[-1], way) in self.ways and beyond(path[-1], way) not in seen]
            if not free:
                path.pop()
                continue
            way = rng.choice(free)
            self._open(path[-1], way)
            path.append(beyond(path[-1], way))
            seen.add(path[-1])
        for _ in range(GAPS):
            self._open(rng.choice(PLACES), rng.choice([*WAYS]))
        self.at, self.gate = rng.sample(PLACES, 2)
        self.came = ""
        self.gone: dict[tuple[int, int], list[str]] = {self.at: []}

    def _open(self, place: tuple[int, int], way: str) -> None:
        if (there := beyond(place, way)) in self.ways:
            self.ways[place].add(way)
            self.ways[there].add(BACK[way])

    def observe(self) -> Observation:
        ways = [way for way in WAYS if way in self.ways[self.at]]
        across, along = self.gate[0] - self.at[0], self.gate[1] - self.at[1]
        sides = ["north" if along < 0 else "south"] * bool(along) + ["west" if across < 0 else "east"] * bool(across)
        gone = f" From here you once went {', '.join(self.gone[self.at])}." if self.gone[self.at] else ""
        came = f" You came from the {self.came}." if self.came else ""
        text = f"Paths lead {', '.join(ways)}.{came}{gone} Bells ring in the {' '.join(sides) or 'air'}."
        return Observation(text, tuple(f"go {way}" for way in ways))

    def act(self, action: str) -> Outcome:
        way = action.removeprefix("go ")
        self.gone[self.at] = [*(each for each in self.gone[self.at] if each != way), way]
        self.at, self.came = beyond(self.at, way), BACK[way]
        self.gone.setdefault(self.at, [])
        found = self.at == self.gate
        return Outcome(1.0 if found else -0.02, ended=found, success=found)
