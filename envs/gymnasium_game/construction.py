"""Construction of environments that draw in their constructor, such as a map: what they draw depends on a seed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from reflectrl.core.seeds import derive_seed


@dataclass
class Draws:
    """Whether anything was drawn."""

    made: bool = False


@contextlib.contextmanager
def drawn_from(first: int) -> Iterator[Draws]:
    """Let what is drawn without a seed of its own depend on the seed ``first``, and tell whether anything was.

    ``gymnasium.make`` takes no seed, so for the block the global generators of Python and NumPy are seeded, and
    gymnasium's maker of generators, which asks the operating system for a seed where it is given none, gives a seeded
    one; at its end all are as before. Entropy that a constructor takes elsewhere (``numpy.random.default_rng()``) is
    not reached: ``check_env`` finds that two environments differ.
    """
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
