"""Rooms that look alike; in each, another door leads out."""

from __future__ import annotations

from reflectrl.core import NatLangEnv, Observation, Outcome, Task


class AlikeRooms(NatLangEnv):
    """Environment whose tasks begin with the same text."""

    name = "alike_rooms"
    observable = False
    max_actions = 2

    def __init__(self) -> None:
        super().__init__(horizon=2)

    def tasks(self, split: str) -> list[Task]:
        return [Task(door) for door in ("red", "blue")] if split == "train" else []

    def start(self, task: Task) -> None:
        pass

    def observe(self) -> Observation:
        return Observation("The same room.", ("open the red door", "open the blue door"))

    def act(self, action: str) -> Outcome:
        out = self.task.id in action
        return Outcome(float(out), ended=out, success=out)
