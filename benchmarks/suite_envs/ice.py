"""The one lake of gymnasium's FrozenLake 4x4 without slips, told by row and column; there is no expert.

Kind: grid, one map, no teacher. Horizon: 30. Hard: the only reward is at the goal, which random play reaches in about
2 % of episodes; test games begin like training games.
"""

from __future__ import annotations

from reflectrl import NatLangEnv, Observation, Outcome, Task

LAKE = ("SFFF", "FHFH", "FFFH", "HFFG")
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
COUNTS = {"train": 64, "validation": 24, "test": 48}


class Ice(NatLangEnv):
    """Reaching the goal brings 1, a hole ends the game; all games are alike."""

    name = "ice"
    instructions = "Walk over the ice to the goal. A hole ends the game."
    max_actions = 4

    def __init__(self) -> None:
        super().__init__(horizon=30)

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}-{number}") for number in range(COUNTS[split])]

    def start(self, task: Task) -> None:
        self.row, self.column = 0, 0

    def observe(self) -> Observation:
        return Observation(f"You stand in row {self.row + 1}, column {self.column + 1}.", tuple(MOVES))

    def act(self, action: str) -> Outcome:
        down, right = MOVES[action]
        self.row = min(max(self.row + down, 0), 3)
        self.column = min(max(self.column + right, 0), 3)
        there = LAKE[self.row][self.column]
        return Outcome(float(there == "G"), ended=there in "HG", success=there == "G")
