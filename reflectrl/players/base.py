"""The two protocols of the loop. Players see prompts; they never see a reward or whether an episode succeeded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reflectrl.core import Decision, Utterance
from reflectrl.prompts import Prompt


class Reflector(Protocol):
    """Writes a reflection ``R ~ R(p(s))`` for each state."""

    wants_hints: bool
    """True for players that read ``prompt.hints`` (the expert); the rollout fills them in only then."""

    @property
    def hit_rate(self) -> float:
        """Fraction of the reflections so far that came from a cache; 0 without one."""
        ...

    def reflect(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Utterance]:
        """One utterance a prompt, in order; ``draws``, uniform in [0, 1), one a prompt, is all the randomness."""
        ...


class Policy(Protocol):
    """Chooses an action ``a ~ pi(. | p(s), R, menu)`` for each state."""

    wants_hints: bool
    """As for ``Reflector``."""

    def act(self, prompts: Sequence[Prompt], draws: Sequence[float]) -> list[Decision]:
        """One decision a prompt, in order; sampling inverts the distribution at ``draws``, so batches do not matter."""
        ...
