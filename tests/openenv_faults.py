"""A server of OpenEnv with faults on demand: the word of an episode is to be said, and other words are faults."""

from __future__ import annotations

import math
import os
import time
from typing import Any

from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field

WORDS = ("red", "blue", "green", "white")
FIELD = os.environ.get("FIELD", "word")
"""Name of the action's field, which another version may have renamed."""


class Say(Action):
    __annotations__ = {FIELD: str}
    locals()[FIELD] = Field(max_length=1000, description="The word to say.")


class Heard(Observation):
    text: str
    success: Any = None


class Words(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.word = ""
        self.said = 0

    def reset(self, seed: int | None = None, **_: Any) -> Heard:
        self.word, self.said = WORDS[(seed or 0) % 4], 0
        return Heard(text=f"Say {self.word}.")

    def step(self, action: Say, **_: Any) -> Heard:
        said = getattr(action, FIELD)
        self.said += 1
        if said == "wait":
            time.sleep(60)
        if said == "raise":
            raise ArithmeticError("nothing was computed")
        if said == "die":
            os._exit(3)
        reward = math.nan if said == "nan" else float(said == self.word)
        return Heard(
            text=f"Say {self.word}; {self.said} said.",
            reward=reward,
            done=said in (self.word, "nan"),
            success="no" if said == "perhaps" else None,
        )

    @property
    def state(self) -> State:
        return State(step_count=self.said)


app = create_app(Words, Say, Heard, max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "2")))
