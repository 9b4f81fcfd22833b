"""A house of nine rooms with a coin in one of them, after TextWorld's coin collector; only the room at hand is shown.

Kind: exploration, hidden map. Horizon: 18. Hard: the expert walks straight to the coin, a player has to search and to
remember where it has been. The expert reaches 100 %, and so does a search that knows which rooms it has seen; one that
only never turns back needlessly, 80 %.
"""

from __future__ import annotations

import random
from collections import deque

from reflectrl import NatLangEnv, Observation, Outcome, Task

NAMES = ("attic", "bathroom", "bedroom", "cellar", "garage", "hall", "kitchen", "library", "pantry", "salon", "studio")
WAYS = {"go north": (0, 1), "go south": (0, -1), "go east": (1, 0), "go west": (-1, 0)}
TAKE = "take the coin"


class CoinCollector(NatLangEnv):
    """Taking the coin brings 1."""

    name = "coin_collector"
    instructions = "Find the coin and take it."
    max_actions = 5

    def __init__(self) -> None:
        super().__init__(horizon=18)

    def tasks(self, split: str) -> list[Task]:
        seeds = {"train": range(150, 3150), "validation": range(50), "test": range(50, 150)}[split]
        return [Task(f"house-{seed}", {"seed": seed}) for seed in seeds]

    def start(self, task: Task) -> None:
        rng = random.Random(task.options["seed"])
        places = [(0, 0)]
        self.doors: dict[tuple[int, int], dict[str, tuple[int, int]]] = {(0, 0): {}}
        while len(places) < 9:  # a tree of rooms
            x, y = rng.choice(places)
            way = rng.choice(list(WAYS))
            there = x + WAYS[way][0], y + WAYS[way][1]
            if there not in self.doors:
                back = next(other for other in WAYS if WAYS[other] == (-WAYS[way][0], -WAYS[way][1]))
                self.doors[x, y][way], self.doors[there] = there, {back: (x, y)}
                places.append(there)
        self.names = dict(zip(places, rng.sample(NAMES, len(places)), strict=True))
        self.at = (0, 0)
        far = self._distances((0, 0))
        self.coin = rng.choice([place for place in places if far[place] >= max(far.values()) - 1])

    def observe(self) -> Observation:
        ways = tuple(way for way in WAYS if way in self.doors[self.at])
        exits = " and ".join(way[3:] for way in ways)
        coin = " There is a coin here!" if self.at == self.coin else ""
        return Observation(
            f"You are in the {self.names[self.at]}.{coin} Exits: {exits}.", (*ways, TAKE) if coin else ways
        )

    def act(self, action: str) -> Outcome:
        if action == TAKE:
            return Outcome(1.0, ended=True, success=True)
        self.at = self.doors[self.at][action]
        return Outcome(0.0)

    def expert(self) -> str:
        if self.at == self.coin:
            return TAKE
        far = self._distances(self.coin)
        return min(self.doors[self.at], key=lambda way: far[self.doors[self.at][way]])

    def secrets(self) -> list[str]:
        return [self.names[self.coin]]

    def _distances(self, place: tuple[int, int]) -> dict[tuple[int, int], int]:
        found, queue = {place: 0}, deque([place])
        while queue:
            here = queue.popleft()
            for there in self.doors[here].values():
                if there not in found:
                    found[there] = found[here] + 1
                    queue.append(there)
        return found
