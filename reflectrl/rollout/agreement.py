"""``Agreement``: ratings compared with the episodes' outcomes, and the records of ratings that it is made from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation

import numpy as np

from reflectrl.core import Trajectory, WorkFailed
from reflectrl.prompts.rating import level_of

ROLE = "rater"


@dataclass(frozen=True)
class Ratings:
    """Ratings and outcomes of the ``B`` episodes of one iteration of RLFT: one line of ``ratings.jsonl``."""

    iteration: int
    highest: int
    """Highest level of the scale."""
    levels: tuple[int | None, ...]
    """(B,) level of each episode; ``None`` without a rating."""
    success: tuple[bool, ...]
    """(B,) success of each episode, according to the environment."""
    returns: tuple[float, ...]
    """(B,) undiscounted sums of the environment's rewards."""

    @property
    def failure_rate(self) -> float:
        """Fraction of the episodes without a rating."""
        return self.levels.count(None) / len(self.levels)


def ratings_of(iteration: int, highest: int, played: Sequence[Trajectory]) -> Ratings:
    """Return the ratings of an iteration's episodes, read from the rater's words at their last turn."""
    said = [trajectory.turns[-1].said.get(ROLE) for trajectory in played]
    return Ratings(
        iteration,
        highest,
        tuple(None if words is None else level_of(words.text) for words in said),
        tuple(trajectory.success for trajectory in played),
        tuple(trajectory.episode_return for trajectory in played),
    )


def check_failures(ratings: Ratings, most: float) -> None:
    """Stop if too many episodes of an iteration have no rating.

    Raises:
        WorkFailed: the fraction of episodes without a rating exceeds ``most``.
    """
    if ratings.failure_rate > most:
        raise WorkFailed(
            f"the rater gave no rating to {ratings.levels.count(None)} of {len(ratings.levels)} episodes of iteration "
            f"{ratings.iteration}, more than players.rater.max_failure_rate={most:g}: fix the rater (calls that were "
            "set aside are listed in calls/rater/rejected.jsonl, and asked again without that file), then continue "
            "from the last checkpoint (the same command)."
        )


@dataclass(frozen=True)
class Agreement:
    """Agreement of ratings with success; the highest level is the prediction of success (V-TIFA, section 5.3)."""

    episodes: int
    """Number of episodes with a rating; all other fields but ``unrated`` describe these."""
    unrated: int
    """Number of episodes without a rating."""
    succeeded: int
    """Number of episodes that succeeded."""
    by_level: tuple[tuple[int, int], ...]
    """(n,) failed and succeeded episodes of each level, lowest first."""
    accuracy: float | None
    """Fraction of the episodes with a correct prediction; ``None`` without episodes."""
    precision: float | None
    """Fraction of the episodes rated highest that succeeded; ``None`` if none was rated highest."""
    recall: float | None
    """Fraction of the successful episodes that were rated highest; ``None`` if none succeeded."""
    success_correlation: float | None
    """Spearman's rank correlation of level and success; ``None`` if one of them is constant."""
    return_correlation: float | None
    """Spearman's rank correlation of level and the environment's return."""


def agreement(lines: Sequence[Ratings]) -> Agreement:
    """Return the agreement over the episodes of all ``lines``."""
    every = [each for line in lines for each in zip(line.levels, line.success, line.returns, strict=True)]
    rated = [(level, success, total) for level, success, total in every if level is not None]
    levels, ends = [level for level, _, _ in rated], [success for _, success, _ in rated]
    pairs = Counter(zip(levels, ends, strict=True))
    highest = max((line.highest for line in lines), default=0)
    table = tuple((pairs[level, False], pairs[level, True]) for level in range(highest + 1))
    (wrong, right), succeeded = table[-1], sum(ends)
    return Agreement(
        episodes=len(rated),
        unrated=len(every) - len(rated),
        succeeded=succeeded,
        by_level=table,
        accuracy=_ratio(len(rated) - wrong - (succeeded - right), len(rated)),
        precision=_ratio(right, wrong + right),
        recall=_ratio(right, succeeded),
        success_correlation=rank_correlation(levels, ends),
        return_correlation=rank_correlation(levels, [total for _, _, total in rated]),
    )


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rho, with mean ranks for equal values; ``None`` if one of the two is constant."""
    try:
        return correlation(_ranks(one), _ranks(other))
    except StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    _, places, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    return [float(rank) for rank in (np.cumsum(counts) - (counts - 1) / 2)[places]]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
