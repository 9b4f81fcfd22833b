"""Five red and five black cards are turned one by one; once, you may bet on the colour of the next.

Kind: memory, counting. Horizon: 10. Hard: only the last card is shown, but the bet is safe as soon as the rest of the
cards has one colour. The expert reaches 100 %, a bet without counting 56 % at most.
"""

from __future__ import annotations

import itertools
import random

from reflectrl import NatLangEnv, Observation, Outcome, Task

RED, BLACK = "bet on red", "bet on black"
WAIT = "wait"


class CardCount(NatLangEnv):
    """A won bet brings 1, a lost one costs 1."""

    name = "card_count"
    instructions = "A pack of 5 red and 5 black cards is turned card by card. Bet on the colour of the next card, once."
    max_actions = 3

    def __init__(self) -> None:
        super().__init__(horizon=10)
        packs = [
            "".join("r" if at in reds else "b" for at in range(10)) for reds in itertools.combinations(range(10), 5)
        ]
        random.Random(11).shuffle(packs)
        tasks = [Task(pack, {"pack": pack}) for pack in packs]
        self._splits = {"train": tasks[:150], "validation": tasks[150:180], "test": tasks[180:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.pack: str = task.options["pack"]
        self.turned = 0

    def observe(self) -> Observation:
        card = "No card is" if not self.turned else f"A {self._colour(self.turned - 1)} card was"
        return Observation(f"{card} turned.", (WAIT, RED, BLACK) if self.turned < 9 else (RED, BLACK))

    def act(self, action: str) -> Outcome:
        if action == WAIT:
            self.turned += 1
            return Outcome(0.0)
        won = action == f"bet on {self._colour(self.turned)}"
        return Outcome(1.0 if won else -1.0, ended=True, success=won)

    def expert(self) -> str:
        rest = self.pack[self.turned :]
        if len(set(rest)) > 1:
            return WAIT
        return RED if rest[0] == "r" else BLACK

    def reflection(self) -> str:
        seen = self.pack[: self.turned]
        return f"Turned so far: {seen.count('r')} red, {seen.count('b')} black."

    def _colour(self, at: int) -> str:
        return "red" if self.pack[at] == "r" else "black"
