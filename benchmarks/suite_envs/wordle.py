"""Wordle over thirty words of four letters; the first guess is given, and the text keeps every answer.

Kind: deduction, hidden word. Horizon: 5. Hard: a menu of 30 words whose spelling has to be learned, and several hints
to be combined; the expert reaches at least 95 %.
"""

from __future__ import annotations

import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

# fmt: off
WORDS = (
    "bird", "boat", "bone", "cake", "card", "coin", "corn", "deer", "door", "fire", "fish", "gold", "hand", "iron",
    "kite", "lamp", "lion", "milk", "moon", "nest", "pear", "rain", "rice", "road", "rope", "sand", "ship", "silk",
    "star", "wolf",
)
# fmt: on


def marks(guess: str, word: str) -> str:
    """Return a mark for each letter of a guess: right, elsewhere or absent."""
    rest = [letter for letter, other in zip(word, guess, strict=True) if letter != other]
    found = []
    for letter, other in zip(guess, word, strict=True):
        if letter != other and letter in rest:
            rest.remove(letter)
            found.append("elsewhere")
        else:
            found.append("right" if letter == other else "absent")
    return ", ".join(f"{letter} {mark}" for letter, mark in zip(guess, found, strict=True))


class Wordle(NatLangEnv):
    """The right word brings 1; there are five guesses after the first."""

    name = "wordle"
    instructions = "Guess the hidden word. Each guess is marked letter by letter."
    observable = False
    max_actions = len(WORDS)

    def __init__(self) -> None:
        super().__init__(horizon=5)
        every = [
            Task(f"{word}-after-{first}", {"word": word, "first": first})
            for word in WORDS
            for first in WORDS
            if word != first
        ]
        random.Random(4).shuffle(every)
        self._splits = {"train": every[:600], "validation": every[600:700], "test": every[700:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.word: str = task.options["word"]
        self.guesses = [task.options["first"]]

    def observe(self) -> Observation:
        lines = [f"{guess}: {marks(guess, self.word)}" for guess in self.guesses]
        return Observation("\n".join(lines), tuple(WORDS))

    def act(self, action: str) -> Outcome:
        self.guesses.append(action)
        return Outcome(float(action == self.word), ended=action == self.word, success=action == self.word)

    def expert(self) -> str:
        return self._possible()[0]

    def reflection(self) -> str:
        return f"It may be {', '.join(self._possible()[:3])}."

    def _possible(self) -> list[str]:
        seen = [(guess, marks(guess, self.word)) for guess in self.guesses]
        return [word for word in WORDS if all(marks(guess, word) == shown for guess, shown in seen)]
