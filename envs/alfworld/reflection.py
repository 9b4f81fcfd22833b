"""``reflect``: what a player who has read everything so far could say of the last command and of where things stand.

The expert acts on privileged facts; a reflection must not, or a model that learns to write it learns to invent. So it
plans with the things that have been seen, and names the places that are left to look at while one is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from reflectrl.envs.alfworld.expert import Plan, State, best_plan
from reflectrl.envs.alfworld.games import Game

if TYPE_CHECKING:
    from reflectrl.envs.alfworld.engine import Position

PLACES = 3
"""Of the places that are left, how many are named."""

_SHOWN = re.compile(r"On the ([a-z]+ \d+), you see|The ([a-z]+ \d+) is open\. In it, you see")
_NAME = re.compile(r"[a-z]+ \d+")
_TWO_NAMES = re.compile(r"(?:take|move|put) (.+) (?:from|to|in/on) (.+)")
_NOTHING_DONE = ("examine", "look", "inventory", "help")


@dataclass(frozen=True)
class Seen:
    """What the texts of an episode have told."""

    names: frozenset[str] = frozenset()
    """Of furniture and things."""
    places: frozenset[str] = frozenset()
    """Names of the receptacles whose contents were shown."""

    def read(self, text: str) -> Seen:
        """What is known after reading one more text."""
        shown = {first or second for first, second in _SHOWN.findall(text)}
        return Seen(self.names.union(_NAME.findall(text)), self.places | shown)


@dataclass(frozen=True)
class Outlook:
    """Where things stand, as far as the player can know."""

    standing: str
    """A fact that names no command."""
    known: int
    """How many of the wanted things were seen."""
    steps: int | None = None
    """To the win, or to what can be done with what is known; ``None`` while the next thing is still to be found."""
    left: tuple[str, ...] = ()
    """Names of the places where it may be."""
    ahead: bool = False
    """Is one of them here and closed?"""


@dataclass(frozen=True)
class Moment:
    """A state, and what the player knows there; what follows from it is worked out once."""

    game: Game
    names: Mapping[str, str]
    """What things are called, by id."""
    position: Position
    seen: Seen

    @cached_property
    def plan(self) -> Plan | None:
        """The shortest way to the win, with privileged facts; ``None`` where there is none."""
        return best_plan(self.game, self.names, self.position)

    @cached_property
    def outlook(self) -> Outlook:
        """Where things stand, without them."""
        return _outlook(self)


def reflect(now: Moment, command: str | None = None, before: Moment | None = None) -> str:
    """Was the last command good, why not, and where do things stand: ``Good. tomato 1 is in fridge 1, which is here.``.

    Args:
        now: where the episode stands.
        command: what was played last.
        before: where it was played.

    """
    outlook = now.outlook
    if command is None or before is None:
        return outlook.standing
    if now.position.reply.won or _better(before.outlook, outlook, command):
        return f"Good. {outlook.standing}"
    return f"Mistake: {fault(command, before.seen)}. {outlook.standing}"


def fault(command: str, seen: Seen) -> str:
    """Why a command that brought the goal no nearer was a mistake, as a fact about what it did."""
    verb = command.split()[0]
    if verb in _NOTHING_DONE:
        return "that changed nothing"
    two = _TWO_NAMES.fullmatch(command)
    if two and verb == "take":
        return f"{two[1]} is not wanted now"
    if two:
        return f"{two[1]} does not belong in {two[2]} now"
    if verb in ("go", "open", "close"):
        place = command.removeprefix("go to ").removeprefix(verb).strip()
        return f"{place} was looked at before" if place in seen.places else f"{place} is of no use now"
    return "nobody asked for that"


def _better(before: Outlook, after: Outlook, command: str) -> bool:
    """Did the command bring the player nearer, by what could be known?"""
    if after.known > before.known:
        return True
    if before.steps is None:
        arrived = after.ahead and command.startswith("go to")
        return after.steps is not None or len(after.left) < len(before.left) or arrived
    return before.steps == 1 if after.steps is None else after.steps < before.steps


def _outlook(moment: Moment) -> Outlook:
    game, names, position, seen = moment.game, moment.names, moment.position, moment.seen
    if position.reply.won:
        return Outlook("Everything is as it should be.", known=0, steps=0)
    state = State(position.facts, names, seen.names)
    thing, lamp = game.targets["object_target"], game.targets["toggle_target"]
    wanted = [one for one in state.of(thing, state.kind) if one in state.within or one == state.held]
    lit = state.of(lamp, state.within) if lamp else []
    known = len(wanted) + len(lit)
    plan = best_plan(game, names, position, seen.names)
    if plan is not None:
        return Outlook(plan.standing, known, len(plan.commands))
    missing = (lamp if lamp and wanted else thing).lower()
    begin = f"{names[state.held].strip()} is in hand. " if state.held in wanted else ""
    another = "other " if wanted and not lamp else ""
    search = f"{begin}No {another}{missing} seen yet"
    left = [place for place in _places(state, missing) if names[place].strip() not in seen.places]
    called = tuple(names[place].strip() for place in left)
    shut = [place for place in left if state.location[place] == state.here and place in state.closed]
    if shut:
        return Outlook(f"{search}; {names[shut[0]].strip()} is here and closed.", known, None, called, ahead=True)
    places = f"; places left: {', '.join(called[:PLACES])}." if called else "."
    return Outlook(search + places, known, None, called)


def _places(state: State, kind: str) -> list[str]:
    """Where such a thing is kept, or everywhere if nothing tells; those with low numbers first."""
    places = [place for place in state.location if (state.kind[place], f"{kind}type") in state.holds]

    def low(place: str) -> tuple[int, str, str]:
        kind, number, id = state.number(place)
        return number, kind, id

    return sorted(places or state.location, key=low)
