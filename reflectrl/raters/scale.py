"""``Scale``: the levels of a rating, how one is read from a reply, and the reward that it becomes (V-TIFA)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from reflectrl.core import InvalidInput, Utterance
from reflectrl.core.chat import DECORATION, BadReply

Reward = Literal["raw", "unit", "max_only"]
LABELS = ("very bad", "bad", "good", "very good")
"""Labels of the paper, lowest first."""
_NUMBER = r"(-?\d+(?:\.\d+)?)(?![\d.]*\s*(?:[-–]|to\b|through\b|or\b)\s*\d)"
"""Matches a number that does not begin a range, such as the repeated scale in "Rating (0-3): 2", nor "1 or 2"."""
_NAMED = re.compile(rf"(?<!confidence )\b(?:rating|score)\b(?:is\b|[\s:=*_`'\"(\[])*{_NUMBER}", re.IGNORECASE)
_OWN_WORDS = re.compile(r"Rating: (\d+)\b")


@dataclass(frozen=True)
class Scale:
    """Levels ``0 ... n - 1`` of a rating ``c``, by their labels."""

    labels: tuple[str, ...] = LABELS
    """(n,) labels, lowest first."""
    reward: Reward = "unit"
    """Reward of the last step: ``c``, ``c / (n - 1)``, or 1 for the highest level alone."""

    def __post_init__(self) -> None:
        """Check that there are at least two labels, all different.

        Raises:
            InvalidInput: fewer than two labels, or equal ones.

        """
        if len({label.lower() for label in self.labels}) < max(2, len(self.labels)):
            raise InvalidInput(
                f"a rater was given the labels {list(self.labels)}; expected at least two, all different, lowest first."
            )

    @property
    def highest(self) -> int:
        """Level of a completed task."""
        return len(self.labels) - 1

    @property
    def levels(self) -> tuple[str, ...]:
        """(n,) levels, in the form in which a model answers."""
        return tuple(str(level) for level in range(len(self.labels)))

    def score(self, level: int) -> float:
        """Return the reward of a level."""
        if self.reward == "raw":
            return float(level)
        return level / self.highest if self.reward == "unit" else float(level == self.highest)

    def read(self, reply: str) -> int:
        """Return the level that a reply names: the last number after the word rating or score, else the whole reply.

        Raises:
            BadReply: it names none, or one that is not on the scale.

        """
        named = _NAMED.findall(reply)
        words = named[-1] if named else reply.strip(DECORATION).lower()
        for level, label in enumerate(self.labels):
            if words in (str(level), label.lower(), f"{level}. {label}".lower()):
                return level
        expected = ", ".join(f"{level} ({label})" for level, label in enumerate(self.labels))
        raise BadReply(f"That is no rating. Answer with exactly one of these numbers: {expected}.")

    def rated(self, level: int | None, steps: int, words: str) -> Utterance:
        """Return a rater's utterance on an episode of ``steps`` steps; without a ``level`` it has no scores."""
        if level is None:
            return Utterance(f"No rating. {words}".strip())
        scores = (*(None,) * (steps - 1), self.score(level))
        text = f"Rating: {level} of 0 to {self.highest}, {self.labels[level]}. {words}"
        return Utterance(text.strip(), scores=scores)


def level_of(words: str) -> int | None:
    """Return the level in the words of ``Scale.rated``; ``None`` for an episode without a rating."""
    found = _OWN_WORDS.match(words)
    return int(found[1]) if found else None
