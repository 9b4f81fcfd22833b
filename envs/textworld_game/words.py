"""``described``: the state of a TextWorld game in words, from the facts of its engine.

A game in JSON is played by the logic of TextWorld alone, which has facts and commands but no texts: those are in the
story file that Inform compiles. The facts have the names of things, as ``get_human_readable_fact`` gives them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

PLAYER, HANDS = "P", "I"
"""Names of the player and of what the player carries in the facts of TextWorld."""
INSIDE = ("at", "in", "on")
DIRECTIONS = ("north", "south", "east", "west")
SHUT = ("closed", "locked")
"""States in which a thing hides what it holds."""
SLOT = "slot"
"""Kind of the places in the player's hands, which TextWorld counts by facts."""


class Argument(Protocol):
    """An argument of a fact."""

    name: str
    type: str


class Fact(Protocol):
    """A fact: ``in(apple, fridge)``, ``open(fridge)`` or ``north_of(kitchen, hall)``."""

    name: str
    arguments: Sequence[Argument]


@dataclass
class _World:
    """Facts by what they say."""

    room: str = ""
    held: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Things by the room, thing or hands that hold them."""
    states: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """States by thing, such as ``open``."""
    doors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Doors by the room on this side and the one behind."""
    ways: list[tuple[str, str, str]] = field(default_factory=list)
    """Room, direction, and the room that lies there."""

    def add(self, name: str, given: Sequence[str]) -> None:
        """Add a fact."""
        direction = name.removesuffix("_of")
        if name == "at" and given[0] == PLAYER:
            self.room = given[1]
        elif name in INSIDE:
            self.held[given[1]].append(given[0])
        elif name == "link":
            self.doors[given[0], given[2]] = given[1]
        elif direction in DIRECTIONS:
            self.ways.append((given[1], direction, given[0]))
        elif len(given) == 1:
            self.states[given[0]].append(name)

    def named(self, thing: str) -> str:
        """Return a thing with its states, and with what it holds in view."""
        states = self.states.get(thing, [])
        inside = [] if {*states} & {*SHUT} else [self.named(each) for each in self.held.get(thing, [])]
        said = f"{thing} ({', '.join(states)})" if states else thing
        return f"{said} with {' and '.join(inside)}" if inside else said

    def lines(self) -> Iterator[str]:
        """Yield the lines of the description."""
        yield f"You are in the {self.room}."
        if here := [self.named(thing) for thing in self.held.get(self.room, [])]:
            yield f"You see: {', '.join(here)}."
        exits = []
        for _, direction, behind in (way for way in self.ways if way[0] == self.room):
            door = self.doors.get((self.room, behind))
            exits.append(f"{direction} through {self.named(door)}" if door else direction)
        if exits:
            yield f"Exits: {', '.join(exits)}."
        yield f"You carry: {', '.join(map(self.named, self.held.get(HANDS, []))) or 'nothing'}."


def described(facts: Iterable[Fact]) -> str:
    """Return the player's room, what is in view there, the exits and the player's belongings, a line each."""
    world = _World()
    plain = ((fact.name, tuple(each.name for each in fact.arguments if each.type != SLOT)) for fact in facts)
    for name, given in sorted(each for each in plain if each[1]):  # the engine keeps facts in sets
        world.add(name, given)
    return "\n".join(world.lines())
