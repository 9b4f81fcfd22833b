"""Episodes in which a function of the environment chooses the actions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from statistics import fmean

from reflectrl.core import NatLangEnv, Task

Choose = Callable[[NatLangEnv], str | None]


def share_of_wins(env: NatLangEnv, tasks: Iterable[Task], choose: Choose) -> float:
    """Play each task once, with its number as the seed, and return the share of successful episodes."""
    won = []
    for seed, task in enumerate(tasks):
        env.reset(seed=seed, options={"task": task})
        ended = False
        while not ended:
            *_, terminated, truncated, info = env.step(choose(env))
            ended = terminated or truncated
        won.append(info["success"])
    return fmean(won)


def at_random(seed: int = 0) -> Choose:
    """Return a player that draws its actions."""
    rng = random.Random(seed)
    return lambda env: rng.choice(env.observation.actions)
