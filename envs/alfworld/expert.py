"""``best_plan``: a shortest plan that wins a game from any state; ``progress``: how far a state has come.

It reads privileged facts, of which a player sees only a part. ALFWorld's own experts are not suitable: the planner
searches without heuristics and takes a minute for two things, and the handcoded expert cannot start from a given state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reflectrl.envs.alfworld.games import Game

if TYPE_CHECKING:
    from reflectrl.envs.alfworld.engine import Position


SERVICES: Mapping[str, tuple[str, str, str, str]] = {
    "pick_clean_then_place_in_recep": ("clean", "sinkbasin", "isclean", "clean"),
    "pick_heat_then_place_in_recep": ("heat", "microwave", "ishot", "hot"),
    "pick_cool_then_place_in_recep": ("cool", "fridge", "iscool", "cool"),
}
"""Verb, furniture that does it, predicate, and property of the thing afterwards, by family."""


@dataclass(frozen=True)
class Errand:
    """Something to do at one place."""

    place: str
    command: str
    """Command to play there; empty if being there is enough."""
    fact: str
    """Fact about the state before the errand, without the distance of the place."""
    inside: bool = False
    """True if the place must be open for it."""


@dataclass(frozen=True)
class Plan:
    """A shortest plan to win."""

    commands: tuple[str, ...]
    """Commands of the plan in order; the last command wins."""
    standing: str
    """Fact that the first command is about; it does not name the command."""


class State:
    """One state of a game, indexed for planning."""

    def __init__(
        self,
        facts: Mapping[str, Iterable[tuple[str, ...]]],
        names: Mapping[str, str],
        seen: Collection[str] | None = None,
    ) -> None:
        def column(predicate: str) -> set[str]:
            return {row[0] for row in facts.get(predicate, ())}

        def pairs(predicate: str) -> list[tuple[str, str]]:
            return [(row[0], row[1]) for row in sorted(facts.get(predicate, ()))]

        self.names = names
        self.kind = {**dict(pairs("objecttype")), **dict(pairs("receptacletype"))}
        self.location = dict(pairs("receptacleatlocation"))
        self.within = {
            thing: place
            for thing, place in pairs("inreceptacle")
            if place in self.location and (seen is None or names[thing] in seen)
        }
        self.here = next((location for _, location in pairs("atlocation")), "")
        self.held = next((thing for _, thing in pairs("holds")), None)
        self.openable = column("openable")
        self.closed = self.openable - column("opened")
        self.toggled = column("istoggled")
        self.holds = set(pairs("cancontain"))
        self.pickable = column("pickupable")
        self.facts = facts

    def of(self, kind: str, among: Iterable[str]) -> list[str]:
        """Return the ids of a kind, sorted by number."""
        wanted = f"{kind.lower()}type"
        return sorted((id for id in among if self.kind.get(id) == wanted), key=self.number)

    def unlike(self, places: Iterable[str], special: set[str]) -> list[str]:
        """Return one place of each group that is equal for a plan, and all ``special`` places."""
        near = {self.here, *(self.location[place] for place in special)}
        found: dict[tuple[str, str, bool], str] = {}
        for place in sorted(places, key=self.number):
            location = self.location[place]
            key = (place if place in special else "", location if location in near else "", place in self.closed)
            found.setdefault(key, place)
        return list(found.values())

    def commands(self, errands: Iterable[Errand]) -> list[str]:
        """Return all commands that the errands take from this state."""
        here, opened = self.here, set()
        found = []
        for errand in errands:
            place = errand.place
            if self.location[place] != here:
                found.append(f"go to {self.names[place]}")
                here = self.location[place]
            if errand.inside and place in self.closed and place not in opened:
                found.append(f"open {self.names[place]}")
                opened.add(place)
            if errand.command:
                found.append(errand.command)
        return found

    def standing(self, errand: Errand) -> str:
        """Return the errand's fact and its place: ``tomato 1 is in fridge 1, which is here and closed``."""
        if self.location[errand.place] != self.here:
            return f"{errand.fact}, which is elsewhere."
        return f"{errand.fact}, which is here{' and closed' * (errand.inside and errand.place in self.closed)}."

    def number(self, id: str) -> tuple[str, int, str]:
        """Return a sort key: kind and number from the name."""
        kind, _, number = self.names[id].strip().rpartition(" ")
        return kind, int(number) if number.isdigit() else 0, id


def best_plan(
    game: Game, names: Mapping[str, str], position: Position, seen: Collection[str] | None = None
) -> Plan | None:
    """Return a shortest plan from a position; ``None`` if the game is won, or cannot be won.

    Only things whose names were ``seen`` are used; ``None`` stands for all things. If only one of two things was seen,
    the plan brings that one. If no lamp was seen, the plan ends with the thing in hand, and is ``None`` from there.
    """
    if position.reply.won:
        return None
    state = State(position.facts, names, seen)
    ways = ((state.commands(errands), errands) for errands in _ways(game, state))
    commands, errands = min(ways, key=lambda way: len(way[0]), default=([], ()))
    return Plan(tuple(commands), state.standing(errands[0])) if commands else None


def _ways(game: Game, state: State) -> Iterator[tuple[Errand, ...]]:
    """Yield errands that win, among them a shortest sequence."""
    thing = game.targets["object_target"]
    wanted = [one for one in state.of(thing, state.kind) if one in state.within or one == state.held]
    if game.family == "pick_two_obj_and_place":
        yield from _two(game, state, wanted)
        return
    for one in wanted:
        if game.family == "look_at_obj_in_light":
            ends = list(_lights(game, state, one)) or [()]  # a thing can be fetched before a lamp was seen
        else:
            ends = list(_services(game, state, one))
        for end in ends:
            special = {errand.place for errand in end} | {state.within[one] for one in wanted if one in state.within}
            for begin in _in_hand(game, state, one, special):
                yield (*begin, *end)


def _in_hand(game: Game, state: State, one: str, special: set[str]) -> Iterator[tuple[Errand, ...]]:
    """Yield errands that get hold of a thing; another thing in hand must be put down first."""
    if one == state.held:
        yield ()
        return
    if one not in state.within or one not in state.pickable:
        return
    if state.held is None:
        yield (_take(state, one),)
        return
    held = state.held
    room = (place for place in state.location if (state.kind[place], state.kind[held]) in state.holds)
    for place in state.unlike(room, special):
        away = Errand(
            place,
            game.put(state.names[held], state.names[place]),
            f"{state.names[held]} is in hand but not wanted now; there is room {_in(state, place)}",
            inside=True,
        )
        yield away, _take(state, one)


def _services(game: Game, state: State, one: str) -> Iterator[tuple[Errand, ...]]:
    """Yield errands that clean, heat or cool a thing if needed, then put it down."""
    name = state.names[one]
    washing: list[tuple[Errand, ...]] = [()]
    if game.family in SERVICES:
        verb, furniture, predicate, result = SERVICES[game.family]
        if (one,) not in state.facts.get(predicate, ()):
            fact = f"{name} is in hand but not {result}; there is "
            places = [(place, state.names[place]) for place in state.of(furniture, state.location)]
            washing = [(Errand(place, f"{verb} {name} with {tool}", fact + tool),) for place, tool in places]
    special = {errand.place for way in washing for errand in way} | set(filter(None, [state.within.get(one)]))
    for way in washing:
        for place in state.unlike(_targets(game, state), special):
            yield (*way, _put(game, state, one, place))


def _lights(game: Game, state: State, one: str) -> Iterator[tuple[Errand, ...]]:
    """Yield errands that go to a lamp and switch it on if needed."""
    for lamp in state.of(game.targets["toggle_target"], state.within):
        place = state.within[lamp]
        fact = f"{state.names[one]} is in hand; {state.names[lamp]} is {_in(state, place)}"
        yield (Errand(place, "" if lamp in state.toggled else f"use {state.names[lamp]}", fact),)


def _two(game: Game, state: State, wanted: list[str]) -> Iterator[tuple[Errand, ...]]:
    """Yield errands that bring both things to the same receptacle; if only one was seen, that one to any receptacle."""
    targets = _targets(game, state)
    if len(wanted) == 1 and state.within.get(wanted[0]) in targets:
        return
    special = {state.within[one] for one in wanted if one in state.within}
    for place in state.unlike(targets, special):
        out = [one for one in wanted if state.within.get(one) != place]
        missing = min(len(out), max(0, 2 - (len(wanted) - len(out))))
        if not missing:
            continue
        for chosen in itertools.permutations(out, missing):
            if state.held in out and chosen[0] != state.held:
                continue  # a thing in hand goes first
            first, *others = chosen
            rest = [errand for one in others for errand in (_take(state, one), _put(game, state, one, place))]
            for begin in _in_hand(game, state, first, {*special, place}):
                yield (*begin, _put(game, state, first, place), *rest)


def _targets(game: Game, state: State) -> list[str]:
    return state.of(game.targets["parent_target"], state.location)


def _take(state: State, one: str) -> Errand:
    place, name = state.within[one], state.names[one]
    return Errand(place, f"take {name} from {state.names[place]}", f"{name} is {_in(state, place)}", inside=True)


def _put(game: Game, state: State, one: str, place: str) -> Errand:
    name = state.names[one]
    fact = f"{name} is in hand and belongs {_in(state, place)}"
    return Errand(place, game.put(name, state.names[place]), fact, inside=True)


def _in(state: State, place: str) -> str:
    return f"{'in' if place in state.openable else 'on'} {state.names[place]}"


def progress(game: Game, names: Mapping[str, str], position: Position) -> float:
    """Return the fraction of the conditions that hold: 1 where the game is won. Reads privileged facts.

    For one thing, the only condition is that it is in its place; for two things in one place there are two. Clean, hot
    or cool things have three: one is in its place, one has the property, one has both. A thing under a lamp has two: it
    is in hand, and a lamp is on where the player is.
    """
    state = State(position.facts, names)
    wanted = set(state.of(game.targets["object_target"], state.kind))
    if game.family == "look_at_obj_in_light":
        near = (lamp for lamp in state.toggled & {*state.within} if state.location[state.within[lamp]] == state.here)
        return ((state.held in wanted) + bool(state.of(game.targets["toggle_target"], near))) / 2
    targets = set(state.of(game.targets["parent_target"], state.location))
    placed = {one for one in wanted if state.within.get(one) in targets}
    if game.family == "pick_two_obj_and_place":
        together = Counter(state.within[one] for one in placed)
        return min(2, max(together.values(), default=0)) / 2
    if game.family not in SERVICES:
        return float(bool(placed))
    *_, predicate, _ = SERVICES[game.family]
    served = {one for one in wanted if (one,) in state.facts.get(predicate, ())}
    return (bool(placed) + bool(served) + bool(placed & served)) / 3
