"""Tic-tac-toe as crosses against a player who moves at random, from positions with some marks on the board.

Kind: game with an opponent. Horizon: 5. Hard: threats are lines of three among nine fields, and a draw is no success;
the expert, who maximises the chance to win, reaches at least 80 %.
"""

from __future__ import annotations

import itertools
import random
from functools import cache

from reflectrl import NatLangEnv, Observation, Outcome, Task

NAMES = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")
LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def wins(board: str, mark: str) -> bool:
    """Return whether ``mark`` has three in a line."""
    return any(all(board[field] == mark for field in line) for line in LINES)


def put(board: str, field: int, mark: str) -> str:
    """Return the board with one mark more."""
    return board[:field] + mark + board[field + 1 :]


@cache
def value(board: str, mark: str) -> float:
    """Return the crosses' chance to win if ``mark`` is to move, crosses move best and noughts at random."""
    if wins(board, "X") or wins(board, "O") or "-" not in board:
        return float(wins(board, "X"))
    after = [value(put(board, field, mark), "XO"[mark == "X"]) for field in range(9) if board[field] == "-"]
    return max(after) if mark == "X" else sum(after) / len(after)


class TicTacToe(NatLangEnv):
    """A win brings 1, a draw nothing, a loss costs 1."""

    name = "tic_tac_toe"
    instructions = "You are X. Get three in a line."
    max_actions = 9

    def __init__(self) -> None:
        super().__init__(horizon=5)
        ones = [put(put("-" * 9, x, "X"), o, "O") for x, o in itertools.permutations(range(9), 2)]
        twos = [put(board, o, "O") for board in ones for o in range(9) if board[o] == "-" and o > board.index("O")]
        every = [Task(board, {"board": board}) for board in (*ones, *twos)]
        random.Random(10).shuffle(every)
        self._splits = {"train": every[:180], "validation": every[180:230], "test": every[230:]}

    def tasks(self, split: str) -> list[Task]:
        return self._splits[split]

    def start(self, task: Task) -> None:
        self.board: str = task.options["board"]

    def observe(self) -> Observation:
        sides = {"You": "X", "Opponent": "O"}
        taken = {who: [NAMES[field] for field in range(9) if self.board[field] == sides[who]] for who in sides}
        text = " ".join(f"{who}: {', '.join(fields)}." for who, fields in taken.items())
        return Observation(text, tuple(NAMES[field] for field in self._free()))

    def act(self, action: str) -> Outcome:
        self.board = put(self.board, NAMES.index(action), "X")
        if not wins(self.board, "X") and self._free():
            self.board = put(self.board, int(self.np_random.choice(self._free())), "O")
        won, lost = wins(self.board, "X"), wins(self.board, "O")
        return Outcome(float(won) - float(lost), ended=won or lost or not self._free(), success=won)

    def expert(self) -> str | None:
        best = max(self._free(), key=lambda field: value(put(self.board, field, "X"), "O"), default=None)
        return None if best is None else NAMES[best]

    def _free(self) -> list[int]:
        return [field for field in range(9) if self.board[field] == "-"]
