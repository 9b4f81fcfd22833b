"""``Safe``: open a safe by its note. Two dials set how far an action is computed, and how much is remembered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import accumulate

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task

SIZE = 8
"""Numbers on a wheel."""
NOTES = ("always", "once")
STARTS = {"train": range(2000), "validation": range(2000, 2100), "test": range(2100, 2300)}
TASKS = {split: [Task(f"note-{number}", {"note": number}) for number in numbers] for split, numbers in STARTS.items()}


class Safe(NatLangEnv):
    """Turn the wheels of a safe as its note says: +1 shared by the wheels, and a wrong stop ends the episode.

    A wheel has the numbers 0 to 7, and after 7 comes 0. The environment shows when reflections pay. To know where a
    wheel stops, one adds the turns one after the other: policies of one to four layers did not learn to add two in
    their one token, while a reflector writes each sum down. A note that is shown once must be carried along in words
    (``players.reflector.carry``) or in ``prompt.history``. The notes of 2,000 training, 100 validation and 200 test
    tasks are drawn at random; with few turns and wheels, different tasks may have the same note.

    Args:
        wheels: how many wheels the safe has, each one step; 1 to 9.
        turns: how many turns of a wheel have to be added; 0 to 9. With 0, the note says where the wheel stops.
        note: ``always`` (each state shows the line of its wheel) or ``once`` (the first state shows all lines, later
            ones none).
    """

    name = "safe"
    instructions = (
        "Turn each wheel of the safe as the note says, and stop it at the right number. After 7 comes 0. A wrong stop "
        "sets off the alarm."
    )
    max_actions = SIZE

    def __init__(self, wheels: int = 3, turns: int = 3, note: str = "always") -> None:
        if not isinstance(wheels, int) or not 1 <= wheels <= 9 or not isinstance(turns, int) or not 0 <= turns <= 9:
            raise InvalidInput(
                f"wheels={wheels!r} and turns={turns!r} were given to {self.name!r}; expected 1 to 9 wheels and 0 to 9 "
                "turns."
            )
        if note not in NOTES:
            raise InvalidInput(f"note={note!r} was given to {self.name!r}; expected one of {', '.join(NOTES)}.")
        super().__init__(horizon=wheels)
        self.wheels, self.turns, self.note = wheels, turns, note

    def tasks(self, split: str) -> Sequence[Task]:
        """Return notes, each drawn from its number."""
        return TASKS[split]

    def start(self, task: Task) -> None:
        number = task.options.get("note")
        if not isinstance(number, int) or not any(number in numbers for numbers in STARTS.values()):
            raise InvalidInput(f"task {task.id!r} is not in {self.name!r}; use env.tasks(split).")
        rng = random.Random(number)
        self._note = [[rng.randrange(SIZE) for _ in range(self.turns + 1)] for _ in range(self.wheels)]
        self._wheel = 0

    def observe(self) -> Observation:
        """Return the lines of the note that are shown; a wheel may be stopped at any number."""
        here = self._wheel
        shown = range(here, here + 1) if self.note == "always" else range(0 if here else self.wheels)
        lines = [self._line(wheel) for wheel in shown if wheel < self.wheels]
        text = "\n".join(lines) or (f"Wheel {here + 1}." if here < self.wheels else "The safe is open.")
        return Observation(text, tuple(f"stop at {number}" for number in range(SIZE)))

    def act(self, action: str) -> Outcome:
        if action != self.expert():
            return Outcome(0.0, ended=True)
        self._wheel += 1
        opened = self._wheel == self.wheels
        return Outcome(1 / self.wheels, ended=opened, success=opened)

    def expert(self) -> str | None:
        """Return the stop of the wheel at hand; ``None`` once the safe is open."""
        return f"stop at {self._stops(self._wheel)[-1]}" if self._wheel < self.wheels else None

    def reflection(self, previous: str | None = None) -> str | None:  # noqa: ARG002 - the task tells the same
        """Say where the wheel stands after each turn, and the same of later wheels if the note is not shown again."""
        last = self.wheels if self.note == "once" else min(self._wheel + 1, self.wheels)
        return "; ".join(map(self._sums, range(self._wheel, last))) or None

    def _line(self, wheel: int) -> str:
        first, *turns = self._note[wheel]
        if not turns:
            return f"Wheel {wheel + 1} stops at {first}."
        return f"Wheel {wheel + 1} is at {first}. Turn it by {', '.join(map(str, turns))}."

    def _sums(self, wheel: int) -> str:
        """Write the additions of a wheel's turns, such as ``3+2=5 5+5=2``; without turns, where it stops."""
        at, *turns = self._note[wheel]
        stops = self._stops(wheel)
        return " ".join(f"{a}+{b}={c}" for a, b, c in zip([at, *stops], turns, stops, strict=False)) or str(at)

    def _stops(self, wheel: int) -> list[int]:
        """Return where the wheel stands after each of its turns, or where it stops without turns."""
        sums = [total % SIZE for total in accumulate(self._note[wheel])]
        return sums[1:] or sums
