"""A note at the start says in which room of a row of rooms, and where in it, the ring is; it is not shown again.

Kind: memory. Horizon: 10. Hard: later texts show the room alone, and one wrong search ends the game; the expert reaches
100 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

ROOMS = ("cellar", "kitchen", "hall", "parlour", "study", "attic")
PLACES = ("chest", "rug", "lamp", "clock", "vase")
ON, BACK = "go on", "go back"


class NoteSearch(NatLangEnv):
    """The ring brings 1, a search elsewhere ends the game with nothing."""

    name = "note_search"
    instructions = "Find the ring. Searching in a wrong place ends the game."
    max_actions = len(PLACES) + 2

    def __init__(self) -> None:
        super().__init__(horizon=10)
        every = [
            Task(f"{start}-to-{room}-{place}", {"start": start, "room": room, "place": place})
            for start in range(len(ROOMS))
            for room in range(len(ROOMS))
            for place in PLACES
        ]
        random.Random(6).shuffle(every)
        self._splits = {"train": every[:100], "validation": every[100:130], "test": every[130:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.at: int = task.options["start"]
        self.room: int = task.options["room"]
        self.place: str = task.options["place"]

    def observe(self) -> Observation:
        note = "" if self.steps else f"A note says: the ring is in the {ROOMS[self.room]}, {self.place}. "
        ways = (ON,) * (self.at < len(ROOMS) - 1) + (BACK,) * (self.at > 0)
        return Observation(
            f"{note}You are in the {ROOMS[self.at]}.", (*ways, *(f"search the {place}" for place in PLACES))
        )

    def act(self, action: str) -> Outcome:
        if action in (ON, BACK):
            self.at += 1 if action == ON else -1
            return Outcome(0.0)
        found = self.at == self.room and action == f"search the {self.place}"
        return Outcome(float(found), ended=True, success=found)

    def expert(self) -> str:
        if self.at == self.room:
            return f"search the {self.place}"
        return ON if self.at < self.room else BACK

    def reflection(self, previous: str | None = None) -> str:  # noqa: ARG002 - the same words, so that they are carried
        return f"The ring is in the {ROOMS[self.room]}, {self.place}. Next: {self.expert()}."
