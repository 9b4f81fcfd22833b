"""``Validated``: how a policy did in validation; saved beside its weights, it decides how the policy is played."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from reflectrl.core.jsonl import decode, read_jsonl, write_jsonl
from reflectrl.core.layout import VALIDATED

CLEAR = 0.05
"""Least difference between two success rates of a validation that is more than noise."""


@dataclass(frozen=True)
class Validated:
    """Result of a validation."""

    sampled: float
    """Success rate with sampled actions."""
    greedy: float | None
    """Success rate of the same episodes with the most probable actions; ``None`` if they were not played so."""
    episode_return: float
    """Mean undiscounted return with sampled actions."""
    episodes: int
    iterations: int
    """Number of iterations of RLFT that had trained these weights; 0 for the weights that it began with."""

    @property
    def rank(self) -> tuple[float, float]:
        """What the best weights have most of: success and then return, both with sampled actions."""
        return self.sampled, self.episode_return

    @property
    def differs(self) -> bool:
        """True if the two ways to play differ by more than ``CLEAR``."""
        return self.greedy is not None and abs(self.sampled - self.greedy) > CLEAR

    @property
    def plays_greedily(self) -> bool:
        """False if sampled actions were clearly better, so that the policy is to be played with them."""
        return not (self.greedy is not None and self.differs and self.sampled > self.greedy)

    @property
    def rates(self) -> str:
        """The success rates in words."""
        greedy = "greedy not played" if self.greedy is None else f"{100 * self.greedy:.0f} % greedy"
        return f"validation {100 * self.sampled:.0f} % sampled, {greedy}"


def write_validated(folder: Path, validated: Validated) -> None:
    """Write the result beside the weights in ``folder``."""
    write_jsonl(folder / VALIDATED, [validated])


def read_validated(folder: Path) -> Validated | None:
    """Return the result beside the weights in ``folder``; ``None`` without one, as of SFT.

    Raises:
        InvalidInput: the file is damaged.

    """
    path = folder / VALIDATED
    lines = read_jsonl(path) if path.is_file() else ()
    return next((decode(Validated, value, where) for where, value in lines), None)


def way_to_play(*, greedy: bool, validated: Validated | None) -> str:
    """Return how a policy is played and, if it is known, why, for people: 'sampled actions (validation ...)'."""
    how = "the most probable actions" if greedy else "sampled actions"
    return how if validated is None else f"{how} ({validated.rates})"
