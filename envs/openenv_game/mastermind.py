"""``Mastermind``: a game of TextArena on OpenEnv's server, with an expert; how a game of others gets one."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from typing import Any

from reflectrl.core import Outcome, Task
from reflectrl.envs.openenv_game.env import OpenEnvGame

CODES = tuple(itertools.permutations("123456", 4))
_ANSWER = re.compile(r"^\[GAME\] Submitted \[(.+)\]\. Feedback: (\d) black peg\(s\), (\d) white peg\(s\)", re.MULTILINE)
_REFUSED = "\n[GAME] You attempted an invalid move."


class Mastermind(OpenEnvGame):
    """TextArena's Mastermind: find a code of four different digits from 1 to 6, written like ``[1 2 3 4]``.

    The code brings 1. TextArena also pays for a lost game by its last guess, here nothing is paid for it. The expert
    plays a random code that agrees with every answer.

    Args:
        server: as for ``OpenEnvGame``; a package is started with this game.
        horizon: maximum number of guesses; TextArena itself allows 20.
        options: the other options of ``OpenEnvGame``.
    """

    name = "mastermind"

    def __init__(self, server: str = "textarena_env", horizon: int = 8, **options: Any) -> None:
        game = {"TEXTARENA_ENV_ID": "Mastermind-v0", "TEXTARENA_DOWNLOAD_NLTK": "0"}
        super().__init__(server, variables=game, horizon=horizon, **options)

    def start(self, task: Task) -> None:
        self._left = list(CODES)
        super().start(task)

    def act(self, action: str) -> Outcome:
        outcome, text = super().act(action), self.observe().text
        if found := _ANSWER.search(text):
            guess, black, white = found.groups()
            self._left = [code for code in self._left if answer(guess.split(), code) == (int(black), int(white))]
        illegal = outcome.illegal or _REFUSED in text
        return Outcome(float(outcome.success), ended=outcome.ended, success=outcome.success, illegal=illegal)

    def expert(self) -> str:
        return f"[{' '.join(random.Random(len(self._left)).choice(self._left))}]"


def answer(guess: Sequence[str], code: Sequence[str]) -> tuple[int, int]:
    """Return how many digits are in their places, and how many more are in others."""
    black = sum(one == other for one, other in zip(guess, code, strict=True))
    return black, len({*guess} & {*code}) - black
