"""A game of TextArena for one player, named by the environment variable TEXTARENA_ENV_ID; seeds decide what it draws.

OpenEnv's own package downloads data, and ignored seeds in earlier versions.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import textarena
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel

GAME = os.environ.get("TEXTARENA_ENV_ID", "Mastermind-v0")
DRAWING = threading.Lock()


class TextArenaMessage(BaseModel):
    sender_id: int
    content: str
    category: str


class TextArenaAction(Action):
    message: str


class TextArenaObservation(Observation):
    prompt: str
    messages: list[TextArenaMessage] = []
    info: dict[str, Any] = {}


class TextArenaEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.game = textarena.make(GAME)
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> TextArenaObservation:
        self.game = textarena.make(GAME)
        with DRAWING:  # the games draw from the global generator
            random.seed(seed)
            self.game.reset(num_players=1)
        self._state = State(episode_id=episode_id)
        return self.seen(done=False, reward=0.0)

    def step(self, action: TextArenaAction, **_: Any) -> TextArenaObservation:
        done, _ = self.game.step(action.message)
        self._state.step_count += 1
        rewards = self.game.state.rewards or {0: 0.0}
        return self.seen(done=done, reward=float(rewards[0]))

    @property
    def state(self) -> State:
        return self._state

    def seen(self, *, done: bool, reward: float) -> TextArenaObservation:
        _, content = self.game.get_observation()
        message = TextArenaMessage(sender_id=-1, content=str(content), category="MESSAGE")
        return TextArenaObservation(prompt=GAME, messages=[message], done=done, reward=reward)


app = create_app(
    TextArenaEnvironment,
    TextArenaAction,
    TextArenaObservation,
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "8")),
)
