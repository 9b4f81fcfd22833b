"""Rewards that depend on the training so far: ``Novelty``, a bonus for rare states, and ``RewardScale``, their unit."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from reflectrl.core import Observation, Trajectory

CELLS = 2**18
"""Number of counters. States whose hashes fall together share one: of 10,000 states, every 26th shares its counter."""

ROUNDING = 1e-6
"""Standard deviation of equal returns as a fraction of their mean, at most: what rounding leaves of 0."""


class Novelty:
    """Count-based exploration bonus ``1 / sqrt(N(s))`` for reaching a state (Strehl & Littman, 2008).

    A state is what its observation shows, counted by hash in a table of constant size (Tang et al., 2017) over all
    tasks: where two tasks show the same, the policy cannot tell them apart, so what it learned in one holds in the
    other. ``N`` is the number of episodes that visited the state, those of the current iteration included, so that the
    order of episodes does not matter. An episode earns the bonus of a state once, and none for its first state, so that
    it cannot live on going round in a circle of rare states.
    """

    def __init__(self) -> None:
        self.counts: Tensor = torch.zeros(CELLS, dtype=torch.int64)
        """(CELLS,) number of episodes so far that visited a state of each hash, over all processes."""

    def rewarded(
        self, played: Sequence[Trajectory], faded: float, total: Callable[[Tensor], Tensor]
    ) -> list[Trajectory]:
        """Count the states of new episodes; return the episodes with the reward ``novelty`` at each step.

        Args:
            played: the new episodes of this process.
            faded: fraction of the bonus that is left, between 0 and 1.
            total: adds a tensor of counts over all processes.

        """
        visits = [_visited(trajectory) for trajectory in played]
        cells = torch.tensor([cell for each in visits for cell in {*each}], dtype=torch.int64)
        self.counts += total(torch.bincount(cells, minlength=CELLS))
        return [self._with_bonus(each, cells, faded) for each, cells in zip(played, visits, strict=True)]

    def _with_bonus(self, trajectory: Trajectory, cells: Sequence[int], faded: float) -> Trajectory:
        turns = []
        for step, (turn, reached) in enumerate(zip(trajectory.turns, cells[1:], strict=True)):
            new = reached not in cells[: step + 1]
            bonus = faded / math.sqrt(int(self.counts[reached])) if new else 0.0
            turns.append(replace(turn, rewards={**turn.rewards, "novelty": bonus}))
        return replace(trajectory, turns=tuple(turns))


def without_novelty(trajectory: Trajectory) -> Trajectory:
    """Return an episode without its reward ``novelty``, which is of the time when it was played."""
    turns = [
        replace(turn, rewards={name: reward for name, reward in turn.rewards.items() if name != "novelty"})
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=tuple(turns))


def _visited(trajectory: Trajectory) -> list[int]:
    """Return the (T + 1,) cells of the states of an episode; one left before its end counts as staying where it was."""
    seen: list[Observation] = [turn.observation for turn in trajectory.turns]
    return [_cell(each) for each in (*seen, trajectory.last or seen[-1])]


def _cell(observation: Observation) -> int:
    digest = hashlib.sha256(json.dumps(observation.shown).encode()).digest()
    return int.from_bytes(digest[:8], "big") % CELLS


class RewardScale:
    """Running standard deviation of the discounted return, which becomes the unit of rewards in updates.

    Like gymnasium's ``NormalizeReward`` and PPO's code (Engstrom et al., 2020), but of the reward-to-go of each step,
    which is what the value head estimates; those compute it from the rewards so far, because they cannot look ahead.
    The mean is not subtracted from rewards, which would change what is best.
    """

    def __init__(self) -> None:
        self.moments: tuple[float, float, float] = (0.0, 0.0, 0.0)
        """Number, mean and sum of squared differences from the mean of all returns so far, over all processes."""

    @property
    def unit(self) -> float:
        """The standard deviation, in units of the environment; as long as all returns are equal, their size, or 1."""
        count, mean, squares = self.moments
        deviation = math.sqrt(squares / count) if count else 0.0
        equal = deviation <= ROUNDING * abs(mean)
        return (abs(mean) or 1.0) if equal else deviation

    def add(self, returns: Tensor, gather: Callable[..., list[list[float]]]) -> None:
        """Add the (N,) rewards-to-go of all steps of an iteration; ``gather`` returns a list of numbers per process."""
        returns = returns.double()
        mean = float(returns.mean())
        for found in gather(len(returns), mean, float(((returns - mean) ** 2).sum())):
            self.moments = _merged(self.moments, (found[0], found[1], found[2]))


def _merged(one: tuple[float, float, float], two: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the moments of both samples together (Chan et al., 1983)."""
    (n, mean, squares), (m, other, more) = one, two
    gap = other - mean
    return n + m, mean + gap * m / (n + m), squares + more + gap * gap * n * m / (n + m)
