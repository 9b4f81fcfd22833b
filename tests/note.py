"""An environment that shows a note once and asks for it later, so that only a memory solves it."""

from __future__ import annotations

from typing import Any, ClassVar

from reflectrl.core import NatLangEnv, Observation, Outcome, Task

DOORS = ("left", "middle", "right")


class Note(NatLangEnv):
    """Read a note, walk along a corridor, and take the door that the note named."""

    name: ClassVar[str] = "note"
    observable: ClassVar[bool] = False
    max_actions = 3

    def __init__(self, corridor: int = 1, *, short: bool = False) -> None:
        super().__init__(horizon=corridor + 2)
        self._corridor = corridor
        self._short = short

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{door}", {"door": door}) for door in DOORS]

    def start(self, task: Task) -> None:
        self._door = task.options["door"]
        self._walked = 0

    def observe(self) -> Observation:
        if self._walked == 0:
            return Observation(f"A note: {self._door}.", ("walk",), short=self._door if self._short else "")
        return Observation("A corridor.", ("walk",)) if self._walked <= self._corridor else Observation("Doors.", DOORS)

    def act(self, action: str) -> Outcome:
        if action == "walk":
            self._walked += 1
            return Outcome(-0.5)
        right = action == self._door
        return Outcome(float(right), ended=True, success=right)

    def expert(self) -> str:
        return "walk" if self._walked <= self._corridor else self._door

    def reflection(self, previous: str | None = None) -> str:
        """Say what the state shows, and keep what was known before."""
        return f"Door {self._door}." if self._walked == 0 else previous or "Go on."

    def spoiler(self) -> None:
        return None

    def secrets(self) -> tuple[Any, ...]:
        return ()
