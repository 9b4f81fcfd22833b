"""Puzzles of one step, on which two predictions of when reflections pay are tried.

``PREDICTED`` was written before any puzzle was played: reflections should pay where the answer is more dependent steps
away from the text than a policy of two layers can take. The other, by the accuracies of SFT, was found on some of them.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from reflectrl import NatLangEnv, Observation, Outcome, Task

PREDICTED: Mapping[str, bool] = {
    "lookup": False,  # one step: find the letter
    "largest": False,  # one step: compare all numbers at once
    "majority": False,  # one step: an average
    "place": False,  # one step: find the place
    "second": False,  # two steps: count the smaller numbers of each
    "hops": True,  # four steps
    "turns": True,  # eight steps
    "coins": True,  # twelve steps
    "chain": True,  # five steps
    "cups": True,  # eight steps
}
"""Whether reflections should pay for a policy of two layers."""
LETTERS = "abcdefgh"
DIRECTIONS = ("north", "east", "south", "west")
TURNS = {"on": 0, "right": 1, "back": 2, "left": 3}
PARTS = {"validation": 1, "test": 2, "train": 17}
"""Parts of 20 that a split has of all texts, so that no text is in two of them."""
DRAWN = 5000
"""Puzzles that are drawn."""


class Puzzle(NamedTuple):
    """A question and its answer."""

    text: str
    answers: Sequence[str]
    right: str
    words: str
    """What an expert writes before it answers."""


def _lookup(rng: random.Random) -> Puzzle:
    held = {letter: str(rng.randrange(8)) for letter in rng.sample(LETTERS, 6)}
    asked = rng.choice(sorted(held))
    shown = " ".join(f"{letter} is {number}." for letter, number in held.items())
    return Puzzle(f"{shown} What is {asked}?", "01234567", held[asked], f"{asked} is {held[asked]}")


def _largest(rng: random.Random) -> Puzzle:
    numbers = rng.sample("0123456789", 5)
    return Puzzle(f"{' '.join(numbers)}. Which is the largest?", "0123456789", max(numbers), max(numbers))


def _majority(rng: random.Random) -> Puzzle:
    balls = rng.choices(("red", "blue"), k=13)
    red = balls.count("red")
    text = f"{' '.join(balls)}. Which are more?"
    return Puzzle(text, ("red", "blue"), "red" if red > 6 else "blue", f"{red} red {13 - red} blue")


def _place(rng: random.Random) -> Puzzle:
    letters, place = rng.sample(LETTERS, 7), rng.randrange(7)
    asked = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh")[place]
    return Puzzle(
        f"{' '.join(letters)}. Which is the {asked}?", LETTERS, letters[place], f"{asked} is {letters[place]}"
    )


def _second(rng: random.Random) -> Puzzle:
    numbers = rng.sample("0123456789", 4)
    ordered = sorted(numbers)
    text = f"{' '.join(numbers)}. Which is the second smallest?"
    return Puzzle(text, "0123456789", ordered[1], f"{ordered[0]} {ordered[1]}")


def _hops(rng: random.Random) -> Puzzle:
    leads = dict(zip(rng.sample(LETTERS, 8), rng.sample(LETTERS, 8), strict=True))
    path = [*accumulate(range(4), lambda at, _: leads[at], initial=rng.choice(LETTERS))]
    shown = " ".join(f"{start} to {end}." for start, end in leads.items())
    return Puzzle(f"{shown} Begin at {path[0]} and go four times.", LETTERS, path[-1], " ".join(path[1:]))


def _turns(rng: random.Random) -> Puzzle:
    start, turns = rng.randrange(4), rng.choices(sorted(TURNS), k=8)
    faced = [DIRECTIONS[at % 4] for at in accumulate((TURNS[each] for each in turns), initial=start)]
    return Puzzle(f"You face {faced[0]}. Go {' '.join(turns)}.", DIRECTIONS, faced[-1], " ".join(faced[1:]))


def _coins(rng: random.Random) -> Puzzle:
    coins = rng.choices(("heads", "tails"), k=12)
    said = [("even", "odd")[total % 2] for total in accumulate(coin == "heads" for coin in coins)]
    return Puzzle(f"{' '.join(coins)}. Is the number of heads even or odd?", ("even", "odd"), said[-1], " ".join(said))


def _chain(rng: random.Random) -> Puzzle:
    said, totals = [], [rng.randrange(8)]
    for _ in range(5):
        added = rng.randrange(8)
        said.append(f"add {added}" if added else "double")
        totals.append((totals[-1] + added if added else 2 * totals[-1]) % 8)
    text = f"After 7 comes 0. Begin with {totals[0]}, {', '.join(said)}."
    return Puzzle(text, "01234567", str(totals[-1]), " ".join(map(str, totals[1:])))


def _cups(rng: random.Random) -> Puzzle:
    at, said, stood = rng.randrange(1, 5), [], []
    text = f"The ball is under cup {at}."
    for _ in range(8):
        one, other = rng.sample(range(1, 5), 2)
        at = other if at == one else one if at == other else at
        said.append(f"{one} and {other}")
        stood.append(str(at))
    return Puzzle(f"{text} Swap {', '.join(said)}.", "1234", str(at), " ".join(stood))


KINDS: Mapping[str, Callable[[random.Random], Puzzle]] = {
    "lookup": _lookup,
    "largest": _largest,
    "majority": _majority,
    "place": _place,
    "second": _second,
    "hops": _hops,
    "turns": _turns,
    "coins": _coins,
    "chain": _chain,
    "cups": _cups,
}


class Puzzles(NatLangEnv):
    """Answer one question: +1 if it is right."""

    name = "puzzles"
    instructions = "Answer the question."

    def __init__(self, kind: str = "lookup") -> None:
        super().__init__(horizon=1)
        self._make = KINDS[kind]
        self.max_actions = len(self._make(random.Random(0)).answers)

    def tasks(self, split: str) -> Sequence[Task]:
        first = sum(PARTS[name] for name in itertools.takewhile(lambda name: name != split, PARTS))
        part = range(first, first + PARTS[split])
        texts = ((number, self._make(random.Random(number)).text) for number in range(DRAWN))
        chosen = (number for number, text in texts if zlib.crc32(text.encode()) % 20 in part)
        return [Task(f"puzzle-{number}", {"number": number}) for number in chosen]

    def start(self, task: Task) -> None:
        self._puzzle = self._make(random.Random(task.options["number"]))

    def observe(self) -> Observation:
        return Observation(self._puzzle.text, tuple(f"say {answer}" for answer in self._puzzle.answers))

    def act(self, action: str) -> Outcome:
        right = action == self.expert()
        return Outcome(float(right), ended=True, success=right)

    def expert(self) -> str:
        return f"say {self._puzzle.right}"

    def reflection(self) -> str:
        return self._puzzle.words
