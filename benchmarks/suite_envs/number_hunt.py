"""A hidden number from 1 to 15; each guess is answered by "higher" or "lower"; there is no expert.

Kind: search, memory, no teacher. Horizon: 4. Hard: the text shows neither the guess nor what is left, so both have to
be remembered; halving always succeeds, random play in 24 %.
"""

from __future__ import annotations

from reflectrl import NatLangEnv, Observation, Outcome, Task

NUMBERS = range(1, 16)
ROUNDS = {"train": range(8), "validation": range(8, 10), "test": range(10, 14)}


class NumberHunt(NatLangEnv):
    """The number brings 1."""

    name = "number_hunt"
    instructions = "Guess the number from 1 to 15."
    max_actions = len(NUMBERS)

    def __init__(self) -> None:
        super().__init__(horizon=4)

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{which}-{number}", {"number": number}) for which in ROUNDS[split] for number in NUMBERS]

    def start(self, task: Task) -> None:
        self.number: int = task.options["number"]
        self.said = "Guess a number."

    def observe(self) -> Observation:
        return Observation(self.said, tuple(f"guess {number}" for number in NUMBERS))

    def act(self, action: str) -> Outcome:
        guess = int(action.removeprefix("guess "))
        self.said = "Right." if guess == self.number else "It is higher." if guess < self.number else "It is lower."
        return Outcome(float(guess == self.number), ended=guess == self.number, success=guess == self.number)
