"""``Role`` of a player, ``State`` of an episode, and the ``View`` of it, which ``reflectrl.seats.table`` makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from reflectrl.core import Hints, InvalidInput, Observation, Reading
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import Prompt

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


@dataclass(frozen=True)
class State:
    """State of one episode at the start of a step."""

    observation: Observation
    past: tuple[str, ...] = ()
    """(t,) actions played so far, oldest first."""
    seed: int = 0
    """Seed of the episode; with the step and the role it determines every draw."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Words already known at this step, by role; these roles are not asked again."""
    hints: Hints | None = None
    """Hints of the expert, where a player reads them."""
    visited: tuple[Observation, ...] = ()
    """(t,) observations in which the actions of ``past`` were chosen; read by raters, and by prompts that show them."""
    rewards: tuple[float, ...] = ()
    """(t,) rewards of the environment for the actions of ``past``; read by prompts that show them."""
    last: Observation | None = None
    """Observation after the last action of a finished episode, if it is known; read by raters only."""
    reading: Reading | None = None
    """Judgement of the environment on the policy's thought; read by correctors that read hints."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Words of the previous step by role, the policy's thought included; read by memories, and by reflectors that
    carry their words."""
    task_id: str = ""
    """Id of the task, empty if unknown; a memory or planner leaves out episodes of the same task."""
    task_type: str = ""
    """Group of the task (``Task.group``), empty if unknown; read by memories and planners."""


@dataclass(frozen=True)
class View:
    """Everything that one player may see when it is asked."""

    prompt: Prompt
    """Text for language models; equal prompts are equal records, so a prompt can be a cache key."""
    observation: Observation
    past: tuple[str, ...]
    """(t,) actions played so far, oldest first."""
    said: Mapping[str, str]
    """Words of other players, by role."""
    hints: Hints | None = None
    action: str | None = None
    """Action that was just chosen, for a corrector."""
    visited: tuple[Observation, ...] = ()
    """(t,) observations in which the actions of ``past`` were chosen, for a rater."""
    last: Observation | None = None
    """Observation after the last action, for a rater; ``None`` if it is unknown."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Words of the memory and thought of the policy at the previous step, for a memory; words of the reflector, for a
    reflector that carries them."""
    task_id: str = ""
    """Id of the task, for a memory or planner; empty if unknown."""
    task_type: str = ""
    """Group of the task, for a memory or planner; empty if unknown or if the task has none."""
    reading: Reading | None = None
    """Judgement of the environment on the policy's thought, for a corrector that reads hints."""


@dataclass(frozen=True, kw_only=True)
class MenuView(View):
    """View of a player that chooses from the legal actions, or corrects such a choice."""

    menu: Menu
