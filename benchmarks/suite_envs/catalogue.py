"""A shop of sixty things in a long list, from which the two that are ordered have to be picked.

Kind: long observations, long menu. Horizon: 3. Hard: 60 actions, 310 words, and of the two things of each kind and
colour only one is in stock; the expert reaches 100 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

KINDS = ("lamp", "chair", "table", "carpet", "clock", "mirror")
COLOURS = ("red", "blue", "green", "white", "black")
ENDS = ("ba", "da", "go", "ki", "lo", "ma", "ne", "ra", "so", "ti")
BRANDS = [first + last for first in ("Al", "Bor", "Cam", "Dun", "El", "Fro") for last in ENDS]
GOODS = dict(zip(BRANDS, [(colour, kind) for kind in KINDS for colour in COLOURS] * 2, strict=True))


class Catalogue(NatLangEnv):
    """Each right pick brings 0.5, a wrong one ends the game."""

    name = "catalogue"
    instructions = "Pick the two things that are ordered, and only what is in stock."
    max_actions = len(BRANDS)

    def __init__(self) -> None:
        super().__init__(horizon=3)

    def tasks(self, split: str) -> list[Task]:
        seeds = {"train": range(150, 3150), "validation": range(50), "test": range(50, 150)}[split]
        return [Task(f"order-{seed}", {"seed": seed}) for seed in seeds]

    def start(self, task: Task) -> None:
        rng = random.Random(task.options["seed"])
        wares = list(dict.fromkeys(GOODS.values()))
        self.ordered = rng.sample(wares, 2)
        pairs = [[brand for brand in BRANDS if GOODS[brand] == ware] for ware in wares]
        self.stock = {rng.choice(pair) for pair in pairs}
        self.picked: list[str] = []

    def observe(self) -> Observation:
        wanted = " and ".join(f"a {colour} {kind}" for colour, kind in self.ordered)
        goods = "\n".join(
            f"{brand}: {' '.join(GOODS[brand])}, {'in stock' if brand in self.stock else 'sold out'}"
            for brand in BRANDS
        )
        return Observation(f"Ordered: {wanted}. Picked: {', '.join(self.picked) or 'nothing'}.\n{goods}", tuple(BRANDS))

    def act(self, action: str) -> Outcome:
        if action not in self._fitting():
            return Outcome(0.0, ended=True)
        self.picked.append(action)
        done = len(self.picked) == len(self.ordered)
        return Outcome(0.5, ended=done, success=done)

    def expert(self) -> str:
        return next(iter(self._fitting()), BRANDS[0])

    def reflection(self) -> str:
        return "Next: " + ", ".join(
            f"{brand} is the {' '.join(GOODS[brand])} in stock" for brand in self._fitting()[:1]
        )

    def _fitting(self) -> list[str]:
        brands = [brand for ware in self.ordered for brand in BRANDS if GOODS[brand] == ware and brand in self.stock]
        return [brand for brand in brands if brand not in self.picked]
