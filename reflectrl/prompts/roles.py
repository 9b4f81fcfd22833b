"""``Role``: the place of a player in the turn: when it speaks, what it reads, and how its words are shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from reflectrl.core import InvalidInput

When: TypeAlias = Literal["episode_start", "before_act", "act", "after_act", "episode_end"]
BEFORE_ACT: tuple[When, ...] = ("episode_start", "before_act")
"""Moments before the policy acts."""


@dataclass(frozen=True)
class Role:
    """What the player of one role sees, when it speaks, and who reads it.

    Every role sees the state and the past actions. One that speaks after the act also sees the menu, the policy's
    thought and its action; one that speaks at the end of an episode sees every state of it.
    """

    name: str
    when: When = "before_act"
    """Moment at which its player speaks: once, before each action, after each action, or at the end."""
    reads: tuple[str, ...] = ()
    """Other roles whose words it reads, in the order in which its prompt shows them."""
    cue: str = ""
    """Beginning of the prompt line that shows its words; empty for words that no prompt shows. The policy reads the
    roles that have a cue and speak before it acts."""
    before: tuple[str, ...] = ()
    """Roles whose words of the step before it sees, the ``policy``'s thought included."""
    carried: str = ""
    """Cue of the line that shows its own words of the step before, if ``PromptFormat.carry`` is set; these are then
    its ``before``."""
    knows_task: bool = False
    """See the id and the group of the task, which no prompt shows."""
    reads_text: bool = False
    """Refuse a state without text, unless its player sees pictures."""
    pictures: tuple[str, str] = ("model.images", "model.images=false")
    """Settings with which its player sees pictures in place of text, and does not; for messages."""

    @property
    def speaks_before(self) -> bool:
        """Whether its player speaks before the policy acts."""
        return self.when in BEFORE_ACT

    def unpictured(self) -> InvalidInput:
        """Return the error for a state without pictures that is shown to this role, which sees pictures."""
        return unpictured(self.name, *self.pictures)


def unpictured(role: str, given: str, otherwise: str) -> InvalidInput:
    """Return the error for a state without pictures where a role sees them by the setting ``given``."""
    return InvalidInput(
        f"the {role} reads pictures ({given}), but a state was shown without any; set the environment's option "
        f"observation to image or both, or {otherwise}."
    )
