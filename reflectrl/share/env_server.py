"""``ServedEnv``: an environment of this library as one of OpenEnv, for OpenEnv's server and clients.

Its texts and menus only: pictures are not sent. A state's ``legal_actions`` are there where the environment has menus;
the rest is metadata: the ``task``, and ``success``, ``illegal`` and ``truncated`` of the last action.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any
from uuid import uuid4

from fastapi import FastAPI
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, State
from openenv.core.env_server.types import Observation as Seen
from pydantic import Field, create_model

from reflectrl.core import InvalidInput, Task, make_env
from reflectrl.core.origin import VERSION
from reflectrl.core.text import shown


class Text(Seen):
    """A state in words."""

    text: str
    task: str = Field(default="", description="Goal of the episode, where the environment says it.")


class ServedEnv(Environment):
    """One session: an environment and its episode.

    Args:
        name: registered name of the environment, or ``module:Class``.
        options: its constructor's arguments.

    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._env = make_env(name, **options)
        self._episode = State()
        self.sent, self.shown = _messages(self._env.instructions, self._env.max_actions)

    def list_splits(self) -> list[str]:
        """Return the names of all splits."""
        return list(self._env.splits)

    def num_tasks(self, split: str) -> int:
        """Return the number of tasks of a split."""
        return len(self._env.any_tasks(split))

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str = "train",
        index: int | None = None,
        **_: object,
    ) -> Seen:
        """Begin an episode with task ``index`` of ``split``; without an index, with a training task that is drawn."""
        task = None if index is None else self._task(split, index)
        info = self._env.reset(seed=seed, options={"task": task})[1]
        self._episode = State(episode_id=episode_id or str(uuid4()))
        return self._seen(info)

    def step(self, action: Any, timeout_s: float | None = None, **_: object) -> Seen:  # noqa: ARG002 - OpenEnv's
        """Play an action.

        Raises:
            InvalidInput: it is not on the menu, or the episode is over.

        """
        reward, terminated, truncated, info = self._env.step(action.action)[1:]
        self._episode.step_count += 1
        return self._seen({**info, "truncated": truncated}, reward, done=terminated or truncated)

    @property
    def state(self) -> State:
        """The episode's id and its number of steps."""
        return self._episode

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the environment's name, and its rules as description."""
        return EnvironmentMetadata(name=self._env.name, description=self._env.instructions, version=VERSION)

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _task(self, split: str, index: int) -> Task:
        tasks = self._env.any_tasks(split)
        if type(index) is not int or not 0 <= index < len(tasks):  # JSON may hold anything
            raise InvalidInput(f"task {shown(index)} of {split!r} was asked for; expected 0 to {len(tasks) - 1}.")
        return tasks[index]

    def _seen(self, info: Mapping[str, Any], reward: float | None = None, *, done: bool = False) -> Seen:
        now = self._env.observation
        menu: dict[str, Any] = {"legal_actions": [] if done else list(now.actions)} if self._env.max_actions else {}
        metadata = {name: info[name] for name in ("task", "success", "illegal", "truncated") if name in info}
        return self.shown(text=now.text, task=now.task, done=done, reward=reward, metadata=metadata, **menu)


@cache
def _messages(instructions: str, max_actions: int) -> tuple[type[Action], type[Seen]]:
    """Return the classes of an environment's actions and observations, whose schemas tell clients how to play."""
    said: dict[str, Any] = {"action": (str, Field(description=instructions or "One of legal_actions, or any text."))}
    menu: dict[str, Any] = {"legal_actions": (list[str], Field(default_factory=list, max_length=max_actions))}
    action = create_model("TextAction", __base__=Action, **said)
    return action, create_model("TextObservation", __base__=Text, **(menu if max_actions else {}))


def env_app(name: str, options: Mapping[str, Any], sessions: int) -> FastAPI:
    """Return OpenEnv's application for an environment; arguments are those of ``serve_env``."""
    first = ServedEnv(name, options)
    first.close()
    kind = name.partition(":")[0]

    class Session(ServedEnv):
        def __init__(self) -> None:
            super().__init__(name, options)

    Session.__name__ = kind  # told to a client whose session cannot be made, instead of the options
    app = create_fastapi_app(Session, first.sent, first.shown, sessions, env_name=kind)
    pages = (app.docs_url, app.redoc_url)  # of FastAPI, which run scripts of another server
    app.router.routes = [route for route in app.router.routes if getattr(route, "path", None) not in pages]
    return app
