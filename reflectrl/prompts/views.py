"""``view``: the one place that decides what each role may see, and writes a step's prompts.

    role        when            state  past  menu  words of others               besides
    planner     episode_start   yes    yes   no    none                          task's id and kind
    memory      before_act      yes    yes   no    planner, reflector            task's id and kind, words before
    reflector   before_act      yes    yes   no    planner, memory
    policy      the act         yes    yes   yes   planner, memory, reflector
    corrector   after_act       yes    yes   yes   planner, memory, reflector    the policy's thought and action
    rater       episode_end     last   all   no    none                          every state of the episode

The state is text, or pictures in place of text for the roles that ``PromptFormat.images`` names. Memory and planner
also see the id and the kind of the task, which no text shows; the memory sees its own words and the policy's thought of
the step before as well. No role sees a reward, whether an episode succeeded, or the options of a task. Hints go to
players that declare ``ReadsHints`` (the environment's own expert), and never into a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reflectrl.core import Hints, InvalidInput, Observation, Reading, nearest
from reflectrl.prompts.format import PromptFormat
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
"""Roles whose words a role reads, in the order in which its prompt shows them."""
FROZEN_ROLES = tuple(role for role in SEEN_WORDS if role != "policy")


@dataclass(frozen=True)
class State:
    """State of one episode at the beginning of a step."""

    observation: Observation
    past: tuple[str, ...] = ()
    """(t,) actions played so far, oldest first."""
    seed: int = 0
    """Seed of the episode; with the step and a role it decides every draw."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Words that are in view already, by role; a role in here is not asked again."""
    hints: Hints | None = None
    """Hints of the expert, where a player reads them."""
    visited: tuple[Observation, ...] = ()
    """(t,) states before this one; read by raters only."""
    reading: Reading | None = None
    """What the environment makes of the policy's thought; read by correctors that read hints."""
    before: Mapping[str, str] = field(default_factory=dict)
    """Words of the step before, by role, the policy's thought among them; read by memories only."""
    task_id: str = ""
    """Id of the task, empty where it is not known; for a memory or planner to leave out that task's own episode."""
    task_type: str = ""
    """Kind of the task (``Task.group``), empty where it is not known; for a memory or planner."""


@dataclass(frozen=True)
class View:
    """Everything that one player may see at one moment."""

    prompt: Prompt
    """The text for language models; equal prompts are equal records, so a prompt is its own cache key."""
    observation: Observation
    past: tuple[str, ...]
    """(t,) actions played so far, oldest first."""
    said: Mapping[str, str]
    """Words of other players, by role."""
    hints: Hints | None = None
    action: str | None = None
    """The action just chosen; for a corrector."""
    visited: tuple[Observation, ...] = ()
    """(t,) states in which the actions of ``past`` were chosen; for a rater."""
    before: Mapping[str, str] = field(default_factory=dict)
    """What the memory said and the policy thought at the step before; for a memory."""
    task_id: str = ""
    """Id of the task, for a memory or planner; empty where it is not known."""
    task_type: str = ""
    """Kind of the task, for a memory or planner; empty for none, or where it is not known."""
    reading: Reading | None = None
    """What the environment makes of the policy's thought; for a corrector that reads hints."""


@dataclass(frozen=True, kw_only=True)
class MenuView(View):
    """View of a player that chooses from, or speaks about, the legal actions."""

    menu: Menu


def view(role: str, layout: PromptFormat, state: State, *, hints: bool = False) -> View:
    """Return the view of ``state`` of a frozen player in ``role``; with the expert's hints if ``hints`` is true.

    Raises:
        InvalidInput: an unknown role, one that sees pictures and a state without any, or a planner, memory or rater,
            which reads text, and a state that only images show.

    """
    if role not in FROZEN_ROLES:
        raise InvalidInput(f"role {role!r} is unknown; {nearest(role, FROZEN_ROLES)}")
    reads_text = role in ("planner", "memory", "rater") and role not in layout.images
    if reads_text and not state.observation.text.strip() and state.observation.images:
        raise unreadable()
    said = _seen(role, state)
    recalls = role in ("planner", "memory")
    return View(
        layout.prompt(role, state.observation, state.past, said),
        state.observation,
        state.past,
        said,
        state.hints if hints else None,
        visited=state.visited if role == "rater" else (),
        before=_words_before(state) if role == "memory" else {},
        task_id=state.task_id if recalls else "",
        task_type=state.task_type if recalls else "",
    )


def menu_view(
    role: str, layout: PromptFormat, state: State, menu: Menu, *, action: str | None = None, hints: bool = False
) -> MenuView:
    """Return the view of ``state`` of the policy, or of the corrector of its ``action``; raises as ``view`` does."""
    said = _seen(role, state)
    return MenuView(
        layout.prompt(role, state.observation, state.past, said, menu),
        state.observation,
        state.past,
        said,
        state.hints if hints else None,
        action,
        menu=menu,
        reading=state.reading if hints else None,
    )


def _words_before(state: State) -> dict[str, str]:
    return {role: state.before[role] for role in ("memory", "policy") if role in state.before}


def _seen(role: str, state: State) -> dict[str, str]:
    return {other: state.said[other] for other in SEEN_WORDS[role] if other in state.said}
