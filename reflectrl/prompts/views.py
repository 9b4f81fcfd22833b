"""``State`` of an episode, and the ``View`` that one player has of it; ``reflectrl.seats.table`` makes the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reflectrl.core import Hints, Observation, Reading
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import Prompt


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
