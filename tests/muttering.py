"""An environment whose state tells what to do, and whose expert says things that nobody can learn."""

from __future__ import annotations

import random

from reflectrl.core import NatLangEnv, Observation, Outcome, Task


class Muttering(NatLangEnv):
    """Press the button that the state names, three times."""

    name = "muttering"
    max_actions = 4

    def __init__(self) -> None:
        super().__init__(horizon=3)

    def start(self, task: Task) -> None:
        self._rng = random.Random(task.options["seed"])
        self._pressed = 0
        self._draw()

    def _draw(self) -> None:
        self._wanted, self._muttered = self._rng.choice("abcd"), self._rng.choices(range(100), k=3)

    def observe(self) -> Observation:
        return Observation(f"Press {self._wanted}, round {self._pressed}.", tuple(f"press {name}" for name in "abcd"))

    def act(self, action: str) -> Outcome:
        right = action == self.expert()
        self._pressed += 1
        over = not right or self._pressed == self.horizon
        self._draw()
        return Outcome(float(right), ended=over, success=right and over)

    def expert(self) -> str:
        return f"press {self._wanted}"

    def reflection(self) -> str:
        return f"Hm, {self._muttered}."
