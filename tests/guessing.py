"""``Guessing``: a number is to be guessed in words, and only what was said before tells the bounds."""

from __future__ import annotations

from reflectrl.core import NatLangEnv, Observation, Outcome, Task

NUMBERS = ("one", "two", "three", "four", "five", "six")


class Guessing(NatLangEnv):
    """Guess a number, in any text or from a menu; a text that is no number ends the episode. There is no expert."""

    name = "guessing"
    observable = False

    def __init__(self, menu: bool = False, horizon: int = 4) -> None:
        super().__init__(horizon)
        self.max_actions = len(NUMBERS) if menu else 0

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{number}", {"number": number}) for number in NUMBERS]

    def start(self, task: Task) -> None:
        self._number: str = task.options["number"]
        self._said = "Guess."

    def observe(self) -> Observation:
        return Observation(self._said, NUMBERS if self.max_actions else ())

    def act(self, action: str) -> Outcome:
        if action not in NUMBERS:
            return Outcome(-0.1, ended=True, illegal=True)
        self._said = "More." if NUMBERS.index(action) < NUMBERS.index(self._number) else "Less."
        right = action == self._number
        return Outcome(float(right), ended=right, success=right)
