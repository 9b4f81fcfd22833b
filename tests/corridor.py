"""A small correct environment, and variants with some of its methods replaced."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from reflectrl.core import NatLangEnv, Observation, Outcome, Task


class Corridor(NatLangEnv):
    """Environment with rooms 0 to 3 from left to right, an exit in room 3, and a random number shown at every step."""

    name = "corridor"
    max_actions = 2

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon)
        self.handle = lambda: None  # cannot be copied

    def tasks(self, split):
        rooms = {"train": (0, 1), "validation": (2,), "test": (1,)}[split]
        return [Task(f"{split}-{room}", {"room": room}) for room in rooms]

    def start(self, task):
        self.room = task.options["room"]
        self.number = int(self.np_random.integers(10**6))

    def observe(self):
        return Observation(f"Room {self.room}, number {self.number}.", ("right", "left") if self.room else ("right",))

    def act(self, action):
        self.room += 1 if action == "right" else -1
        self.number = int(self.np_random.integers(10**6))
        out = self.room == 3
        return Outcome(float(out), ended=out, success=out)

    def expert(self):
        return "right"


class Hall(Corridor):
    """The same rooms without a number, so that a text tells where the player is."""

    name = "hall"

    def observe(self):
        return replace(super().observe(), text=f"Room {self.room}.")

    def reflection(self):
        return self.expert() and "Next: right."


class SilentHall(Hall):
    """A hall without an expert."""

    name = "silent_hall"

    def expert(self):
        return None


class FaintHall(SilentHall):
    """A silent hall with rewards of a hundredth."""

    name = "faint_hall"

    def act(self, action):
        outcome = super().act(action)
        return replace(outcome, reward=outcome.reward / 100)


class WarmHall(SilentHall):
    """A silent hall in which every step has its own reward."""

    name = "warm_hall"

    def act(self, action):
        outcome = super().act(action)
        return replace(outcome, reward=self.room + self.steps / 10)


class SlipperyHall(SilentHall):
    """A silent hall in which three steps in ten go right, whatever is wanted."""

    name = "slippery_hall"

    def act(self, action):
        return super().act(action if self.np_random.random() < 0.7 else "right")


class DiceyHall(SilentHall):
    """A slippery hall whose chance no seed repeats."""

    name = "dicey_hall"

    def act(self, action):
        return super().act(action if random.random() < 0.7 else "right")  # noqa: S311 - a fault of this hall


class WrittenOffHall(SlipperyHall):
    """The same, said to hide something."""

    name = "written_off_hall"
    observable = False


class HiddenHall(SilentHall):
    """A silent hall whose text does not tell where the player is."""

    name = "hidden_hall"

    def observe(self):
        return replace(super().observe(), text="A room.")


class Ledge(Hall):
    """Twelve rooms in which a step to the left ends the episode."""

    name = "ledge"

    def __init__(self, horizon: int = 12) -> None:
        super().__init__(horizon)

    def act(self, action):
        self.room += 1
        fell, out = action == "left", self.room == 12
        return Outcome(float(out and not fell), ended=fell or out, success=out and not fell)


class SlowHall(Hall):
    """A hall that takes long to make."""

    def __init__(self, horizon: int = 5) -> None:
        time.sleep(0.1)
        super().__init__(horizon)


def corridor(horizon: int = 5, **replaced: Any) -> Corridor:
    """Return a corridor with class attributes and methods replaced by name."""
    return type("ReplacedCorridor", (Corridor,), replaced)(horizon)
