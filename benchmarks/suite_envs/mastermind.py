"""Mastermind with three pegs of four colours and a menu of twenty codes; only the last answer is shown.

Kind: deduction, partially observed. Horizon: 3. Hard: earlier answers have to be remembered and combined. The expert,
who keeps its own record, reaches at least 95 %; guesses that fit the last answer alone win 71 %.
"""

from __future__ import annotations

import itertools
import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

COLOURS = ("red", "blue", "green", "white")
CODES = tuple(" ".join(code) for code in random.Random(8).sample(list(itertools.product(COLOURS, repeat=3)), 20))


def answer(guess: str, code: str) -> tuple[int, int]:
    """Return how many pegs are right, and how many more colours are there elsewhere."""
    pegs, hidden = guess.split(), code.split()
    right = sum(one == other for one, other in zip(pegs, hidden, strict=True))
    return right, sum(min(pegs.count(colour), hidden.count(colour)) for colour in COLOURS) - right


class Mastermind(NatLangEnv):
    """The code brings 1."""

    name = "mastermind"
    instructions = "Find the hidden code."
    max_actions = len(CODES)

    def __init__(self) -> None:
        super().__init__(horizon=3)

    def tasks(self, split: str) -> list[Task]:
        seeds = {"train": range(200, 3200), "validation": range(100), "test": range(100, 200)}[split]
        return [Task(f"game-{seed}", {"seed": seed}) for seed in seeds]

    def start(self, task: Task) -> None:
        self.code, first = random.Random(task.options["seed"]).sample(CODES, 2)
        self.record = [first]

    def observe(self) -> Observation:
        right, elsewhere = answer(self.record[-1], self.code)
        return Observation(f"Your guess {self.record[-1]}: {right} right, {elsewhere} elsewhere.", CODES)

    def act(self, action: str) -> Outcome:
        self.record.append(action)
        found = action == self.code
        return Outcome(float(found), ended=found, success=found)

    def expert(self) -> str:
        seen = [(guess, answer(guess, self.code)) for guess in self.record]
        return next(code for code in CODES if all(answer(guess, code) == given for guess, given in seen))
