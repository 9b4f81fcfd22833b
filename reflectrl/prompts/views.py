"""``view``: the one place that determines what each role may see, and writes the prompts of a step.

    role        when            state  past  menu  words of others               also
    planner     episode_start   yes    yes   no    none                          task's id and kind
    memory      before_act      yes    yes   no    planner, reflector            task's id and kind, words before
    reflector   before_act      yes    yes   no    planner, memory               its words before, if it carries them
    policy      the act         yes    yes   yes   planner, memory, reflector
    corrector   after_act       yes    yes   yes   planner, memory, reflector    the policy's thought and action
    rater       episode_end     last   all   no    none                          every state, and the one at the end

The state is text, or pictures in place of text for the roles that ``PromptFormat.images`` names. Memory and planner
also see the id and the group of the task, which no text shows; the memory also sees its own words and the policy's
thought at the previous step. Every role sees the last past actions, with ``prompt.history`` also the past states and
the rewards of the environment. No role sees whether an episode succeeded, or the options of a task. Hints are given
only to players that declare ``ReadsHints`` (the environment's expert), and never appear in a prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reflectrl.core import Hints, InvalidInput, Observation, Reading, nearest
from reflectrl.prompts.format import CARRIED, PromptFormat
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import Prompt, unreadable

SEEN_WORDS: Mapping[str, tuple[str, ...]] = {
    "planner": (),
    "memory": ("planner", "reflector"),
    "reflector": ("planner", "memory"),
    "policy": ("planner", "memory", "reflector"),
    "corrector": ("planner", "memory", "reflector", "policy"),
    "rater": (),
}
"""Other roles whose words each role reads, in the order in which its prompt shows them."""
When = Literal["episode_start", "before_act", "after_act", "episode_end"]
MOMENTS: Mapping[str, When] = {
    "planner": "episode_start",
    "memory": "before_act",
    "reflector": "before_act",
    "corrector": "after_act",
    "rater": "episode_end",
}
"""Moment of the step or episode at which each frozen role speaks."""


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


def view(role: str, layout: PromptFormat, state: State, *, hints: bool = False) -> View:
    """Return the view that a frozen player in ``role`` has of ``state``, with the expert's hints if ``hints``.

    Raises:
        InvalidInput: an unknown role, a state without pictures for a role that sees pictures, or a state without text
            for a planner, memory or rater that reads text, or a state without the past that the prompt shows.

    """
    if role not in MOMENTS:
        raise InvalidInput(f"role {role!r} is unknown; {nearest(role, MOMENTS)}")
    reads_text = role in ("planner", "memory", "rater") and role not in layout.images
    if reads_text and not state.observation.text.strip() and state.observation.images:
        raise unreadable()
    said = _seen(role, state)
    before = _words_before(role, layout, state)
    carried = {CARRIED: before.get("reflector", "")} if role == "reflector" and layout.carry else {}
    recalls = role in ("planner", "memory")
    return View(
        _prompt(role, layout, state, {**said, **carried}),
        state.observation,
        state.past,
        said,
        state.hints if hints else None,
        visited=state.visited if role == "rater" else (),
        last=state.last if role == "rater" else None,
        before=before,
        task_id=state.task_id if recalls else "",
        task_type=state.task_type if recalls else "",
    )


def menu_view(
    role: str, layout: PromptFormat, state: State, menu: Menu, *, action: str | None = None, hints: bool = False
) -> MenuView:
    """Return the policy's view of ``state``, or the view of the corrector of its ``action``; raise as ``view`` does."""
    said = _seen(role, state)
    return MenuView(
        _prompt(role, layout, state, said, menu),
        state.observation,
        state.past,
        said,
        state.hints if hints else None,
        action,
        menu=menu,
        reading=state.reading if hints else None,
    )


def _prompt(role: str, layout: PromptFormat, state: State, said: Mapping[str, str], menu: Menu | None = None) -> Prompt:
    return layout.prompt(role, state.observation, state.past, said, menu, visited=state.visited, rewards=state.rewards)


def _words_before(role: str, layout: PromptFormat, state: State) -> dict[str, str]:
    read = {"memory": ("memory", "policy"), "reflector": ("reflector",) if layout.carry else ()}
    return {other: state.before[other] for other in read.get(role, ()) if other in state.before}


def _seen(role: str, state: State) -> dict[str, str]:
    return {other: state.said[other] for other in SEEN_WORDS[role] if other in state.said}
