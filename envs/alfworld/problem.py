"""A problem in PDDL: a floor plan with things in it, a start and a goal that can be reached."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from reflectrl.envs.alfworld.scenes import LAMP, LAMP_STANDS, Receptacle, Scene, point, rules

_TOOLS = {
    "pick_clean_then_place_in_recep": ("SinkBasin", "cleanable"),
    "pick_heat_then_place_in_recep": ("Microwave", "heatable"),
    "pick_cool_then_place_in_recep": ("Fridge", "coolable"),
}
"""Furniture of each family that does its service, and the property that a thing needs for it."""
_KINDS = (8, 16)
"""Fewest and most kinds of things besides the goal's own kind."""
_COPIES = 3
"""Maximum number of things of one kind."""

_MANGLED = {"-": "_minus_", "|": "_bar_", "+": "_plus_", ".": "_dot_"}


@dataclass(frozen=True)
class Thing:
    """An object at its place."""

    id: str
    kind: str
    place: Receptacle


def goals_in(family: str, scene: Scene) -> tuple[tuple[str, str], ...]:
    """Return every thing and target of a solvable game: (thing, furniture), or (thing, lamp)."""
    known = rules()
    if scene.room not in known.rooms[family]:
        return ()
    if family == "look_at_obj_in_light":
        return tuple((thing, LAMP) for thing in scene.things) if scene.lamp else ()
    tool, needed = _TOOLS.get(family, (None, None))
    if tool is not None and tool not in scene.kinds:
        return ()
    return tuple(
        (thing, target)
        for thing in scene.things
        if needed is None or thing in known.properties[needed]
        for target in sorted(scene.kinds - {tool})
        if thing in known.holds[target] and _places(scene, thing, target)
    )


def write_problem(
    family: str, scene: Scene, thing: str, target: str, rng: random.Random, name: str, household: int | None = None
) -> str:
    """Return the text of a problem. It is solvable: the agent can go everywhere and no door is locked.

    At the start, no ``thing`` lies on ``target``, which is its furniture or the lamp. ``rng`` draws the start and all
    things with their places; in a ``household``, each kind of thing has one place in all problems.
    """
    things = _things(family, scene, thing, target, rng, household)
    taken = {receptacle.location for receptacle in scene.receptacles}
    start = next(location for location in _locations(rng) if location not in taken)
    goal = rules().goals[family].format(obj=thing, recep=target, toggle=target)
    lines = [
        f"(define (problem {name})",
        "(:domain alfred)",
        "(:objects",
        *_objects(scene, things, [*sorted(taken), start]),
        ")",
        "(:init",
        *_facts(scene, things, start),
        ")",
        goal.strip(),
    ]
    return "\n".join(lines) + "\n"


def _places(scene: Scene, thing: str, target: str) -> list[Receptacle]:
    holds = rules().holds
    return [place for place in scene.receptacles if thing in holds[place.kind] and place.kind != target]


def _things(
    family: str, scene: Scene, thing: str, target: str, rng: random.Random, household: int | None
) -> list[Thing]:
    others = [kind for kind in scene.things if kind != thing]
    kinds = rng.sample(others, min(len(others), rng.randint(*_KINDS)))
    copies = {kind: rng.randint(1, _COPIES) for kind in kinds}
    copies[thing] = rng.randint(2 if family == "pick_two_obj_and_place" else 1, _COPIES)
    found: dict[str, Thing] = {}
    for kind, count in copies.items():
        places = _kept(kind, _places(scene, kind, target if kind == thing else ""), household)
        for _ in range(count):
            _add(found, kind, rng.choice(places), rng)
    if scene.lamp:
        stands = [place for place in scene.receptacles if place.kind in LAMP_STANDS]
        _add(found, LAMP, rng.choice(_kept(LAMP, stands, household)), rng)
    return [found[id] for id in sorted(found)]


def _kept(kind: str, places: list[Receptacle], household: int | None) -> list[Receptacle]:
    """Return all places, or the one where a household keeps a kind of thing: the first in its order for this kind."""
    if household is None:
        return places
    return [min(places, key=lambda place: order(household, f"{kind} {place.id}"))]


def order(household: int, name: str) -> float:
    """Return a number that decides which of several names comes first in a household."""
    return random.Random(f"household {household}: {name}").random()


def _add(found: dict[str, Thing], kind: str, place: Receptacle, rng: random.Random) -> None:
    id = f"{kind}|{point(rng)}"
    while id in found:
        id = f"{kind}|{point(rng)}"
    found[id] = Thing(id, kind, place)


def _locations(rng: random.Random) -> Iterator[str]:
    while True:
        yield f"loc|{rng.randint(-12, 12)}|{rng.randint(-12, 12)}|{rng.choice((0, 90, 180, 270))}|30"


def _objects(scene: Scene, things: list[Thing], locations: list[str]) -> Iterator[str]:
    yield "agent1 - agent"
    yield from (f"{kind}Type - otype" for kind in sorted({thing.kind for thing in things}))
    yield from (f"{kind}Type - rtype" for kind in sorted(scene.kinds))
    yield from (f"{mangled(thing.id)} - object" for thing in things)
    yield from (f"{mangled(receptacle.id)} - receptacle" for receptacle in scene.receptacles)
    yield from (f"{mangled(location)} - location" for location in locations)


def _facts(scene: Scene, things: list[Thing], start: str) -> Iterator[str]:
    known = rules()
    for receptacle in scene.receptacles:
        id = mangled(receptacle.id)
        yield f"(receptacleType {id} {receptacle.kind}Type)"
        yield f"(receptacleAtLocation {id} {mangled(receptacle.location)})"
        if receptacle.kind in known.openable:
            yield f"(openable {id})"
    for thing in things:
        id = mangled(thing.id)
        yield f"(objectType {id} {thing.kind}Type)"
        yield f"(inReceptacle {id} {mangled(thing.place.id)})"
        yield f"(objectAtLocation {id} {mangled(thing.place.location)})"
        if thing.kind != LAMP:
            yield f"(pickupable {id})"
        if thing.kind in known.containers:
            yield f"(isReceptacleObject {id})"
        yield from (f"({name} {id})" for name, kinds in known.properties.items() if thing.kind in kinds)
    for kind in sorted(scene.kinds):
        for held in sorted({thing.kind for thing in things} & known.holds[kind]):
            yield f"(canContain {kind}Type {held}Type)"
    yield f"(atLocation agent1 {mangled(start)})"


def mangled(id: str) -> str:
    """Return an id in the form that PDDL can write and the engine's own tables expect."""
    return "".join(_MANGLED.get(letter, letter) for letter in id)
