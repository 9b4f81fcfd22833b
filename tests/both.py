"""A game in which sampled actions win and the most probable ones do not."""

from __future__ import annotations

from reflectrl.core import Observation, Outcome, Task
from reflectrl.envs.number_line import NumberLine
from reflectrl.envs.number_line.env import DOWN, UP


class Both(NumberLine):
    """Environment in which both actions have to be played, so that a policy that always plays one never wins."""

    name = "both"
    observable = False

    def start(self, task: Task) -> None:
        super().start(task)
        self.played: set[str] = set()

    def observe(self) -> Observation:
        return Observation("Play both.", (UP, DOWN))

    def act(self, action: str) -> Outcome:
        self.played.add(action)
        won = len(self.played) == 2
        return Outcome(float(won), ended=won, success=won)

    def expert(self) -> str | None:
        return DOWN if UP in self.played else UP

    def mistaken(self) -> bool | None:
        return None
