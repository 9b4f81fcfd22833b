"""``GymnasiumGame``: an environment of gymnasium, observed by its text rendering, with names for its actions."""

from __future__ import annotations

import contextlib
import random
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils import seeding
from gymnasium.utils.colorize import color2num

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, seed_tasks
from reflectrl.core.errors import raised
from reflectrl.core.indexed import MASK
from reflectrl.core.seeds import derive_seed

PLAYER = "red"
"""Colour in which most of gymnasium's text games show the player; it is not named."""
_COLOURED = re.compile(r"\x1b\[([\d;]+)m([^\x1b]+)\x1b\[0?m")
_COLOURS = {number % 10: name for name, number in color2num.items()}
"""Names of terminal colours by the last digit of their codes, which begin with 3, or with 4 for a background."""
_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]|\r")


class GymnasiumGame(NatLangEnv):
    """A gymnasium environment with discrete actions that renders as text (mode "ansi").

    A task is a seed, for the initial state and all other random draws of the episode. An environment whose constructor
    draws, such as FrozenLake with ``map_name: null``, is constructed again for each episode, with draws that depend on
    the task's seed, so that a task is the same everywhere. Text that is rendered in colour
    is shown in brackets, with the name of its colour unless that is red: ``[S]``, ``[blue R]``. A truncation by the
    environment itself ends the episode without success, and counts as terminated.

    Many games begin in one state whatever the seed: with its usual map, FrozenLake's tasks are one and the same, as
    ``check-env`` and ``eval`` say. ``map_name: null`` draws a map for each seed.

    There is no expert: ``reflectrl train`` trains a policy by play alone, and gen-data needs a chat model that plays
    (``data.teacher=openai``, ``data.trajectory=teacher``); a subclass may define ``expert`` and ``describe``.

    Args:
        game: ``id`` of ``gymnasium.make``, e.g. "FrozenLake-v1".
        success_reward: an episode is a success if it ends with a reward of at least this.
        actions: names of the actions, in gymnasium's order; absent: "action 0", "action 1", ...
        make: further arguments of ``gymnasium.make``, e.g. ``{is_slippery: false}``; ``horizon`` limits the steps.
        horizon: maximum number of steps of an episode; absent: gymnasium's limit.
        seeds: number of tasks for training; validation and test have 200 each, or as many if these are fewer.

    Raises:
        InvalidInput: no such environment, one whose actions are not discrete, or one that renders no text.
    """

    name = "gymnasium"
    observable = False

    def __init__(
        self,
        game: str,
        success_reward: float,
        actions: Sequence[str] | None = None,
        make: Mapping[str, Any] | None = None,
        horizon: int | None = None,
        seeds: int = 10_000,
    ) -> None:
        self._made_from = game, make or {}
        with drawn_from(0) as drawn:
            self._game = _made(*self._made_from)
        self._drawn = drawn.made
        """Whether the constructor draws."""
        count = self._game.action_space.n
        self._names = tuple(actions) if actions is not None else tuple(f"action {number}" for number in range(count))
        if len(self._names) != count or len(set(self._names)) != count:
            raise InvalidInput(f"{game!r} has {count} actions; expected as many different names, not {self._names}.")
        check_seeds(seeds)
        limit = horizon if horizon is not None else gymnasium.spec(game).max_episode_steps
        if limit is None:
            raise InvalidInput(f"{game!r} does not say how long an episode may be; give a horizon.")
        super().__init__(horizon=limit)
        self.max_actions = int(count)
        self._success_reward = success_reward
        self._seeds = seeds
        self._seen: Any = None
        self._info_seen: Mapping[str, Any] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        """Return seeds, each of which belongs to one split."""
        return seed_tasks(split, self.splits, self._seeds)

    def start(self, task: Task) -> None:
        """Reset the environment with the task's seed, which also decides what its constructor draws."""
        seed = task.options["seed"]
        if self._drawn:
            self._game.close()
            with drawn_from(derive_seed("constructor", seed)):
                self._game = _made(*self._made_from)
        self._seen, self._info_seen = self._game.reset(seed=seed)

    def observe(self) -> Observation:
        """Return the rendering, and the actions that the mask allows; all actions are common."""
        mask = self._info_seen.get(MASK)
        legal = [name for number, name in enumerate(self._names) if mask is None or mask[number]]
        return Observation(self.describe(self._seen), tuple(legal or self._names), common=self._names)

    def act(self, action: str) -> Outcome:
        number = self._names.index(action)
        self._seen, reward, terminated, truncated, self._info_seen = self._game.step(number)
        success = bool(terminated) and float(reward) >= self._success_reward
        return Outcome(float(reward), ended=bool(terminated or truncated), success=success)

    def describe(self, observation: Any) -> str:  # noqa: ARG002 - for subclasses
        """Return the state in words: the text that gymnasium renders, without control characters."""
        rendered, more = str(self._game.render()), 1
        while more:  # from the innermost colour outwards
            rendered, more = _COLOURED.subn(_bracketed, rendered)
        return _ESCAPES.sub("", rendered).strip("\n")

    def close(self) -> None:
        self._game.close()


def check_seeds(seeds: int) -> None:
    """Refuse an environment without a task."""
    if seeds < 1:
        raise InvalidInput(f"seeds={seeds} were given; expected 1 or more tasks for training.")


def _bracketed(coloured: re.Match[str]) -> str:
    codes = (int(code) for code in coloured[1].split(";") if code)
    name = next((_COLOURS.get(code % 10, "") for code in codes if code // 10 in (3, 4)), "")
    return f"[{coloured[2]}]" if name in ("", PLAYER) else f"[{name} {coloured[2]}]"


def _made(game: str, make: Mapping[str, Any]) -> Any:
    if "max_episode_steps" in make:
        raise InvalidInput("make has max_episode_steps, an end that would be no truncation; set horizon instead.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from newer versions, and from render modes, which are checked below
            # without its time limit, since the base class counts the steps
            made = gymnasium.make(
                game, **{"render_mode": "ansi", "max_episode_steps": -1, "disable_env_checker": True, **make}
            )
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        raise InvalidInput(f"gymnasium cannot make {game!r} with {dict(make)}: it {raised(error)}.") from error
    if not isinstance(made.action_space, Discrete) or made.action_space.start != 0:
        raise InvalidInput(f"{game!r} has the actions {made.action_space}; expected discrete ones, counted from 0.")
    modes = made.metadata.get("render_modes") or ()
    if "ansi" not in modes or made.render_mode != "ansi":
        raise InvalidInput(
            f"{game!r} renders in the modes {', '.join(modes)}; expected 'ansi', which is text: choose another "
            "environment, or write a NatLangEnv around it."
        )
    return made


@dataclass
class Draws:
    """Whether anything was drawn by a constructor that draws, such as a map."""

    made: bool = False


_DRAWING = threading.RLock()


@contextlib.contextmanager
def drawn_from(first: int) -> Iterator[Draws]:
    """Let what is drawn without a seed of its own depend on the seed ``first``, and tell whether anything was.

    ``gymnasium.make`` takes no seed, so for the block the global generators of Python and NumPy are seeded, and
    gymnasium's maker of generators, which asks the operating system for a seed where it is given none, gives a seeded
    one; at its end all are as before. One thread at a time is in such a block. Entropy that a constructor takes
    elsewhere (``numpy.random.default_rng()``) is not reached: ``check_env`` finds that two environments differ.
    """
    with _DRAWING:
        draws, ours, theirs, make = Draws(), random.getstate(), np.random.get_state(), seeding.np_random
        count = 0

        def seeded(seed: int | None = None) -> tuple[np.random.Generator, int]:
            nonlocal count
            if seed is not None:
                return make(seed)
            draws.made = True
            count += 1
            return make(derive_seed("gymnasium", first, count))

        random.seed(first)
        np.random.seed(first)  # noqa: NPY002 - the global generator is the one that such constructors draw from
        before = _global_state()
        seeding.np_random = seeded
        try:
            yield draws
        finally:
            draws.made = draws.made or _global_state() != before
            seeding.np_random = make
            random.setstate(ours)
            np.random.set_state(theirs)


def _global_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state(legacy=True)
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest
