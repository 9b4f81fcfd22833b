"""``reflect``: a judgement of the last command and of the state; ``read``: whether a policy's thought is right.

Neither the expert's commands nor its reflections use privileged facts, since a model that learns them learns to invent.
Both therefore plan with the things that have been seen, and while one is missing, search the places that are left,
which the reflection names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from reflectrl.core import Reading
from reflectrl.envs.alfworld.expert import SERVICES, Plan, State, best_plan
from reflectrl.envs.alfworld.games import Game

if TYPE_CHECKING:
    from reflectrl.envs.alfworld.engine import Position


NOISE = ("examine", "help", "inventory", "look")
"""Verbs of commands that change nothing and repeat known facts."""
MAX_PLACES = 3
"""Maximum number of remaining places that a reflection names."""

WON = "Everything is as it should be."
"""What a reflection says about a state in which the task is done."""

_SHOWN = re.compile(r"On the ([a-z]+ \d+), you see|The ([a-z]+ \d+) is open\. In it, you see")
_NAME = r"[a-z]+ \d+"
_PLACE = re.compile(r"(?:go to|open|close) (.+)")
_THING_AND_PLACE = re.compile(r"(?:move|put) (.+) (?:to|in/on) (.+)")
_THING = re.compile(r"take (.+) from .+")


@dataclass(frozen=True)
class Seen:
    """Names that the texts of an episode have shown, or that the player knew before."""

    names: frozenset[str] = frozenset()
    """Names of furniture and things."""
    places: frozenset[str] = frozenset()
    """Names of the receptacles whose contents have been shown."""

    def read(self, text: str) -> Seen:
        """Return what is known after another text."""
        shown = {first or second for first, second in _SHOWN.findall(text)}
        return Seen(self.names.union(re.findall(_NAME, text)), self.places | shown)

    def knowing(self, names: Iterable[str]) -> Seen:
        """Return what is known by a player who knows further names."""
        return Seen(self.names.union(names), self.places)


@dataclass(frozen=True)
class Outlook:
    """Assessment of the state, from what the player can know."""

    standing: str
    """Fact about the state that names no command."""
    known: int
    """Number of the needed things that have been seen."""
    steps: int | None = None
    """Steps to the win, or to what known things allow; ``None`` while the next thing has not been found."""
    command: str | None = None
    """Next command; ``None`` if there is nothing left to do or to search."""
    left: tuple[str, ...] = ()
    """Names of the places where the thing may be, the next to search first."""
    ahead: bool = False
    """True if one of these places is here and closed."""
    burdened: bool = False
    """True if something in hand is not needed."""


@dataclass(frozen=True)
class Moment:
    """A state with the player's knowledge of it; conclusions are computed once."""

    game: Game
    names: Mapping[str, str]
    """Map from ids to names of things."""
    position: Position
    seen: Seen

    @cached_property
    def plan(self) -> Plan | None:
        """A shortest plan to the win, with privileged facts; ``None`` if there is none."""
        return best_plan(self.game, self.names, self.position)

    @cached_property
    def outlook(self) -> Outlook:
        """Assessment without privileged facts."""
        return _outlook(self)


def reflect(now: Moment, command: str | None = None, before: Moment | None = None) -> str:
    """Judge the command that led from ``before``, and describe the state: ``Good. tomato 1 is on shelf 1.``."""
    if command is None or before is None:
        return now.outlook.standing
    if is_mistake(now, command, before):
        return f"Mistake: {fault(command, before.seen)}. {now.outlook.standing}"
    return f"Good. {now.outlook.standing}"


def is_mistake(now: Moment, command: str, before: Moment) -> bool:
    """Return whether a command played ``before`` brought the player no nearer, by what could be known."""
    return not (now.position.reply.won or _better(before.outlook, now.outlook, command))


def fault(command: str, seen: Seen) -> str:
    """Return the fact that makes a command a mistake, if it brought the goal no nearer."""
    if command.split()[0] in NOISE:
        return "that changed nothing"
    if took := _THING.fullmatch(command):
        return f"{took[1]} is not wanted now"
    if put := _THING_AND_PLACE.fullmatch(command):
        return f"{put[1]} does not belong in {put[2]} now"
    if at := _PLACE.fullmatch(command):
        return f"{at[1]} was looked at before" if at[1] in seen.places else f"{at[1]} is of no use now"
    return "nobody asked for that"


def _better(before: Outlook, after: Outlook, command: str) -> bool:
    """Return whether the command brought the player nearer, by what could be known."""
    if after.known > before.known:
        return True
    if before.steps is not None:
        return before.steps == 1 if after.steps is None else after.steps < before.steps
    if after.steps is not None:
        return False  # nothing was found, so earlier progress has to be repeated
    arrived = after.ahead and command.startswith("go to")
    return arrived or len(after.left) < len(before.left) or (before.burdened and not after.burdened)


def _outlook(moment: Moment) -> Outlook:
    game, names, position, seen = moment.game, moment.names, moment.position, moment.seen
    if position.reply.won:
        return Outlook(WON, known=0, steps=0)
    state = State(position.facts, names, seen.names)
    thing, lamp = game.targets["object_target"], game.targets["toggle_target"]
    wanted = [one for one in state.of(thing, state.kind) if one in state.within or one == state.held]
    lit = state.of(lamp, state.within) if lamp else []
    # more things than needed are not progress
    known = min(len(wanted), 2 if game.family == "pick_two_obj_and_place" else 1) + min(len(lit), 1)
    plan = best_plan(game, names, position, seen.names)
    if plan is not None:
        return Outlook(plan.standing, known, len(plan.commands), plan.commands[0])
    missing = (lamp if lamp and wanted else thing).lower()
    begin = f"{names[state.held].strip()} is in hand. " if state.held in wanted else ""
    another = "other " if wanted and not lamp else ""
    left = _places(state, missing, seen)
    commands = {place: f"go to {names[place].strip()}" for place in left}
    left.sort(key=lambda place: commands[place] not in position.reply.commands)  # places out of reach come last
    called = tuple(names[place].strip() for place in left)
    shut = [place for place in left if state.location[place] == state.here and place in state.closed]
    where = f"; places left: {', '.join(called[:MAX_PLACES])}" if called else ""
    command = commands[left[0]] if left else None
    if shut:
        where = f"; {names[shut[0]].strip()} is here and closed"
        command = f"open {names[shut[0]].strip()}"
    burdened = state.held is not None and state.held not in wanted
    said = f"{begin}No {another}{missing} seen yet{where}."
    possible = command if command in position.reply.commands else None
    return Outlook(said, known, None, possible, called, bool(shut), burdened)


def _places(state: State, kind: str, seen: Seen) -> list[str]:
    """Return the places left to search: those where such a thing is kept, else all, lowest numbers first."""
    left = [place for place in state.location if state.names[place].strip() not in seen.places]
    likely = [place for place in left if (state.kind[place], f"{kind}type") in state.holds]

    def low(place: str) -> tuple[int, str, str]:
        kind, number, id = state.number(place)
        return number, kind, id

    return sorted(likely or left, key=low)


# ---- thoughts of a policy ----

_JUDGEMENT = re.compile(r"^(?:good\.|mistake: [^.]*\.) ?")
"""Beginning of a thought that judges the last command instead of the state."""
_LACKS = re.compile(rf"({_NAME}) is in hand but not (clean|hot|cool)\b")
_HELD = re.compile(rf"({_NAME}) is in hand")
_PLACED = re.compile(rf"({_NAME}) is (?:in|on) ({_NAME})")
_DISTANCE = re.compile(rf"({_NAME})(?:, which)? is (here|elsewhere)")
_CLOSED = re.compile(rf"({_NAME})(?:, which)? is here and closed")
_UNSEEN = re.compile(r"\bno (other )?([a-z]+) seen yet")
_LEFT = re.compile(rf"places left: ({_NAME}(?:, {_NAME})*)")

_GO = re.compile(rf"places left: (?P<place>{_NAME})|(?P<far>{_NAME}), which is elsewhere")
_SERVED = re.compile(rf"(?P<thing>{_NAME}) is in hand but not (?P<lacks>clean|hot|cool); there is (?P<tool>{_NAME})")
_LAMP = re.compile(rf"is in hand; (?P<lamp>{_NAME}) is (?:in|on) ")
_PUT = re.compile(rf"(?P<thing>{_NAME}) is in hand .* (?:in|on) (?P<place>{_NAME})")


def read(thought: str, now: Moment) -> Reading:
    """Judge a thought about a state, in the sentences of ``reflect``, and return the command that it calls for.

    A thought that makes no statement on the state is wrong, as one that misreads it, and as what it says about things
    that no text has shown, even if they are there by chance.
    """
    words = _JUDGEMENT.sub("", " ".join(thought.casefold().split()))
    said = list(_statements(words, now))
    return Reading(bool(said) and all(said), _called(words, now))


def _statements(words: str, now: Moment) -> Iterator[bool]:
    """Yield for each statement whether it is true."""
    state = State(now.position.facts, now.names, now.seen.names)
    name = {id: called.strip() for id, called in now.names.items()}
    place_of = {name[thing]: name[place] for thing, place in state.within.items()}
    near = {name[place] for place, location in state.location.items() if location == state.here}
    closed = {name[place] for place in state.closed}
    held = name.get(state.held or "")
    lacking = {result: predicate for _, _, predicate, result in SERVICES.values()}
    for thing in _HELD.findall(words):
        yield thing == held
    for thing, result in _LACKS.findall(words):
        yield thing not in {name[row[0]] for row in now.position.facts.get(lacking[result], ())}
    for thing, place in _PLACED.findall(words):
        yield place_of.get(thing) == place
    for place, distance in _DISTANCE.findall(words):
        yield (place in near) == (distance == "here")
    for place in _CLOSED.findall(words):
        yield place in closed
    for other, kind in _UNSEEN.findall(words):
        yield len(state.of(kind, {*state.within, *filter(None, [state.held])})) == bool(other)
    for places in _LEFT.findall(words):
        yield now.seen.places.isdisjoint(places.split(", "))
    if WON.casefold() in words:
        yield now.position.reply.won


def _called(words: str, now: Moment) -> str | None:
    """Return the command that follows from a thought, right or wrong; ``None`` if none does."""
    if to := _GO.search(words):
        return f"go to {to['place'] or to['far']}"
    if shut := _CLOSED.search(words):
        return f"open {shut[1]}"
    if served := _SERVED.search(words):
        verb = next(verb for verb, _, _, result in SERVICES.values() if result == served["lacks"])
        return f"{verb} {served['thing']} with {served['tool']}"
    if lamp := _LAMP.search(words):
        return f"use {lamp['lamp']}"
    if put := _PUT.search(words):
        return now.game.put(put["thing"], put["place"])
    if placed := _PLACED.search(words):
        return f"take {placed[1]} from {placed[2]}"
    return None
