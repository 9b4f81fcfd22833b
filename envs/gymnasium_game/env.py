"""``GymnasiumGame``: an environment of gymnasium, observed by its text rendering, with names for its actions."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task
from reflectrl.core.errors import raised

MASK = "action_mask"
"""Key of ``info`` under which gymnasium's own environments list the actions that have an effect."""
_COLOURED = re.compile(r"\x1b\[[\d;]+m(.+?)\x1b\[0?m", re.DOTALL)
_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")


class GymnasiumGame(NatLangEnv):
    """A gymnasium environment with discrete actions that renders as text (mode "ansi").

    A task is a seed, for the initial state and all other random draws of the episode. Text that is rendered in colour,
    such as the player's position, is shown in brackets. There is no expert, so gen-data needs a chat model that plays
    (``data.teacher=openai``, ``data.trajectory=teacher``); a subclass may define ``expert`` and ``describe``.

    Args:
        id: as for ``gymnasium.make``, e.g. "FrozenLake-v1".
        success_reward: an episode is a success if it ends with a reward of at least this.
        actions: names of the actions, in gymnasium's order; absent: "action 0", "action 1", ...
        make: further arguments of ``gymnasium.make``, e.g. ``{is_slippery: false}``.
        horizon: maximum number of steps of an episode; absent: gymnasium's limit.
        seeds: number of tasks; half of them are for training, a quarter each for validation and test.

    Raises:
        InvalidInput: no such environment, one whose actions are not discrete, or one that renders no text.

    """

    name = "gymnasium"
    observable = False

    def __init__(
        self,
        id: str,  # noqa: A002 - gymnasium's name for it
        success_reward: float,
        actions: Sequence[str] | None = None,
        make: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        seeds: int = 400,
    ) -> None:
        self._game = _made(id, make or {})
        count = self._game.action_space.n
        self._names = tuple(actions) if actions is not None else tuple(f"action {number}" for number in range(count))
        if len(self._names) != count or len(set(self._names)) != count:
            raise InvalidInput(f"{id!r} has {count} actions; expected as many different names, not {self._names}.")
        if seeds < 4:
            raise InvalidInput(f"seeds={seeds} were given; expected 4 or more, so that each split has one.")
        limit = horizon if horizon is not None else gymnasium.spec(id).max_episode_steps
        if limit is None:
            raise InvalidInput(f"{id!r} does not say how long an episode may be; give a horizon.")
        super().__init__(horizon=limit)
        self.max_actions = int(count)
        self._success_reward = success_reward
        self._seeds = seeds
        self._seen: Any = None
        self._info_seen: Mapping[str, Any] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return seeds, each of which belongs to one split."""
        first, last = {"train": (0, 0.5), "validation": (0.5, 0.75), "test": (0.75, 1)}[split]
        numbers = range(int(first * self._seeds), int(last * self._seeds))
        return [Task(f"seed-{number}", {"seed": number}) for number in numbers]

    def start(self, task: Task) -> None:
        """Reset the environment with the task's seed."""
        self._seen, self._info_seen = self._game.reset(seed=task.options["seed"])

    def observe(self) -> Observation:
        """Return the rendering, and the actions that the mask allows; all actions are common."""
        mask = self._info_seen.get(MASK)
        legal = [name for number, name in enumerate(self._names) if mask is None or mask[number]]
        return Observation(self.describe(self._seen), tuple(legal or self._names), common=self._names)

    def act(self, action: str) -> Outcome:
        """Play an action by its number."""
        number = self._names.index(action)
        self._seen, reward, terminated, truncated, self._info_seen = self._game.step(number)
        ended = bool(terminated or truncated)
        return Outcome(float(reward), ended=ended, success=ended and float(reward) >= self._success_reward)

    def describe(self, observation: Any) -> str:  # noqa: ARG002 - for subclasses
        """Return the state in words: the text that gymnasium renders, without control characters."""
        rendered = str(self._game.render())
        return _ESCAPES.sub("", _COLOURED.sub(r"[\1]", rendered)).strip("\n")

    def close(self) -> None:
        """Close the environment."""
        self._game.close()


def _made(id: str, make: Mapping[str, Any]) -> Any:  # noqa: A002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from newer versions, and from render modes, which are checked below
            # without its time limit, since the base class counts the steps
            game = gymnasium.make(
                id, **{"render_mode": "ansi", "max_episode_steps": -1, "disable_env_checker": True, **make}
            )
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise InvalidInput(f"gymnasium cannot make {id!r} with {dict(make)}: it {raised(error)}.") from error
    if not isinstance(game.action_space, Discrete) or game.action_space.start != 0:
        raise InvalidInput(f"{id!r} has the actions {game.action_space}; expected discrete ones, counted from 0.")
    modes = game.metadata.get("render_modes") or ()
    if "ansi" not in modes or game.render_mode != "ansi":
        raise InvalidInput(
            f"{id!r} renders in the modes {', '.join(modes)}; expected 'ansi', which is text: choose another "
            "environment, or write a NatLangEnv around it."
        )
    return game
