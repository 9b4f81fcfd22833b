"""Who sees what: one table, made from the list of seats, and the views and seats that follow from it.

``tests/seats/test_table.py`` holds the table as it is now::

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
only to players that declare ``ReadsHints`` (the environment's expert), and never appear in a prompt. Seats of a user's
own have the roles in ``PromptFormat.roles``; the policy reads their words after those of the library's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reflectrl.core import InvalidInput, nearest
from reflectrl.prompts.format import PromptFormat
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.players import Player
from reflectrl.prompts.prompt import Prompt, unreadable
from reflectrl.prompts.views import MenuView, Role, State, View, When
from reflectrl.seats import SEATS

FROZEN: Mapping[str, Role] = {kind.role.name: kind.role for kind in SEATS}
"""The roles of the library's frozen players."""
POLICY = Role(
    "policy",
    "act",
    reads=tuple(role.name for role in FROZEN.values() if role.speaks_before and role.cue),
    cue="Thought:",
)
"""The trained player, which reads everybody who speaks before it."""
MOMENTS: Mapping[str, When] = {name: role.when for name, role in FROZEN.items()}
"""Moment of the step or episode at which each frozen role speaks."""
SEEN_WORDS: Mapping[str, tuple[str, ...]] = {name: role.reads for name, role in {**FROZEN, "policy": POLICY}.items()}
"""Other roles whose words each role reads, in the order in which its prompt shows them."""


@dataclass(frozen=True)
class Seat:
    """A frozen player with its role in an episode."""

    role: str
    """``planner``, ``memory``, ``reflector``, ``corrector``, ``rater`` or the name of ``own``; it determines when the
    player is asked, what it sees, and who reads its words."""
    player: Player
    own: Role | None = None
    """Role of a seat that the library does not have; ``PromptFormat.roles`` needs it as well."""

    def __post_init__(self) -> None:
        """Check role and player.

        Raises:
            InvalidInput: there is no such role, ``own`` is another one, or the player cannot speak.
        """
        known = {**FROZEN, **({} if self.own is None else {self.own.name: self.own})}
        if self.role not in known:
            raise InvalidInput(f"a seat was given the role {self.role!r}; {nearest(self.role, known)}")
        if isinstance(self.player, type) or not callable(getattr(self.player, "say", None)):
            raise InvalidInput(
                f"the seat of the {self.role} was given {self.player!r}; expected an object with a method "
                "say(views, draws), not a class."
            )

    @property
    def when(self) -> When:
        """Moment of the step or episode at which the player is asked."""
        return FROZEN[self.role].when if self.own is None else self.own.when


def reflecting(reflector: Player | None) -> tuple[Seat, ...]:
    """Return the seats of Reflect-RL: one reflector, or none for the ablation without reflections."""
    return () if reflector is None else (Seat("reflector", reflector),)


def check_roles(seats: Sequence[Seat]) -> None:
    """Check that no role has two players: a step keeps the words of one player of each role.

    Raises:
        InvalidInput: a role has several players.
    """
    roles = [seat.role for seat in seats]
    if several := [role for role in roles if roles.count(role) > 1]:
        raise InvalidInput(
            f"{roles.count(several[0])} players were seated as {several[0]!r}; expected one player a role: let one "
            "player say the words of both, or give the other one another role."
        )


def acting(seats: Sequence[Seat]) -> tuple[Seat, ...]:
    """Return the seats that speak before the policy acts, which is all that play without training needs."""
    return tuple(seat for seat in seats if seat.when in ("episode_start", "before_act"))


def role_of(name: str, layout: PromptFormat) -> Role:
    """Return a role of the library, or one that a layout adds.

    Raises:
        InvalidInput: there is no such role.
    """
    known = {**FROZEN, POLICY.name: POLICY, **{role.name: role for role in layout.roles}}
    if name not in known:
        raise InvalidInput(f"role {name!r} is unknown; {nearest(name, known)}")
    return known[name]


def view(role: str, layout: PromptFormat, state: State, *, hints: bool = False) -> View:
    """Return the view that a frozen player in ``role`` has of ``state``, with the expert's hints if ``hints``.

    Raises:
        InvalidInput: an unknown role, a state without pictures for a role that sees pictures, or a state without text
            for a planner, memory or rater that reads text, or a state without the past that the prompt shows.
    """
    reader = role_of(role, layout)
    only_pictures = bool(state.observation.images) and not state.observation.text.strip()
    if only_pictures and reader.reads_text and role not in layout.images:
        raise unreadable()
    said = _seen(reader, layout, state)
    heard = reader.before if layout.carry or not reader.carried else ()
    before = {other: state.before[other] for other in heard if other in state.before}
    carried = {reader.carried: before.get(role, "")} if reader.carried and layout.carry else {}
    at_the_end = reader.when == "episode_end"
    return View(
        _prompt(reader, layout, state, {**_lines(said, layout), **carried}),
        state.observation,
        state.past,
        said,
        state.hints if hints else None,
        visited=state.visited if at_the_end else (),
        last=state.last if at_the_end else None,
        before=before,
        task_id=state.task_id if reader.knows_task else "",
        task_type=state.task_type if reader.knows_task else "",
    )


def menu_view(
    role: str, layout: PromptFormat, state: State, menu: Menu, *, action: str | None = None, hints: bool = False
) -> MenuView:
    """Return the policy's view of ``state``, or the view of the corrector of its ``action``; raise as ``view`` does."""
    reader = role_of(role, layout)
    said = _seen(reader, layout, state)
    return MenuView(
        _prompt(reader, layout, state, _lines(said, layout), menu),
        state.observation,
        state.past,
        said,
        state.hints if hints else None,
        action,
        menu=menu,
        reading=state.reading if hints else None,
    )


def _prompt(
    reader: Role, layout: PromptFormat, state: State, lines: Mapping[str, str], menu: Menu | None = None
) -> Prompt:
    visited, rewards = state.visited, state.rewards
    return layout.prompt(reader, state.observation, state.past, lines, menu, visited=visited, rewards=rewards)


def _seen(reader: Role, layout: PromptFormat, state: State) -> dict[str, str]:
    own = (role.name for role in layout.roles if role.speaks_before and role.cue and reader is POLICY)
    return {other: state.said[other] for other in (*reader.reads, *own) if other in state.said}


def _lines(said: Mapping[str, str], layout: PromptFormat) -> dict[str, str]:
    """Return words by the cue of their line instead of their role."""
    return {role_of(name, layout).cue: words for name, words in said.items()}
