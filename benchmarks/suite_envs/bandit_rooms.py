"""Six rooms in a row with four doors each; one leads on, the others back to the first room; there is no expert.

Kind: exploration, no teacher. Horizon: 30. Hard: the only reward is behind the last right door, which random play finds
in less than 1 % of episodes; all games are alike.
"""

from __future__ import annotations

from reflectrl import NatLangEnv, Observation, Outcome, Task

ROOMS = {"stone": "red", "glass": "green", "wooden": "blue", "iron": "green", "paper": "white", "golden": "red"}
DOORS = ("red", "green", "blue", "white")
COUNTS = {"train": 64, "validation": 24, "test": 48}


class BanditRooms(NatLangEnv):
    """The way out brings 1."""

    name = "bandit_rooms"
    instructions = "Find the way out."
    max_actions = len(DOORS)

    def __init__(self) -> None:
        super().__init__(horizon=30)

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{number}") for number in range(COUNTS[split])]

    def start(self, task: Task) -> None:
        self.room = 0

    def observe(self) -> Observation:
        room = list(ROOMS)[min(self.room, len(ROOMS) - 1)]
        return Observation(f"You are in the {room} room.", tuple(f"open the {door} door" for door in DOORS))

    def act(self, action: str) -> Outcome:
        right = action == f"open the {list(ROOMS.values())[self.room]} door"
        self.room = self.room + 1 if right else 0
        out = self.room == len(ROOMS)
        return Outcome(float(out), ended=out, success=out)
