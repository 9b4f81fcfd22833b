"""Games of ALFWorld, generated with the engine's own domain, grammar, goals and floor plans.

The published games need a download and have a licence of their own; these need neither. The positions of things are our
own, so results are for self-generated games, and never for ALFWorld's splits (see ``published_games``).

A game is a problem in PDDL: a floor plan with things in it, a start and a goal that can be reached.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core import InvalidInput
from reflectrl.core.seeds import derive_seed
from reflectrl.envs.alfworld.scenes import (
    FAMILIES,
    LAMP,
    LAMP_STANDS,
    PLANS,
    ROOMS,
    Receptacle,
    Scene,
    point,
    rules,
    scene,
)

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


__all__ = ["FAMILIES", "KINDS", "LABEL", "PUTS", "Game", "make_game", "make_games", "read_game"]

LABEL = "ALFWorld engine, self-generated games"
"""Label of results on these games."""

PUTS = ("move {o} to {r}", "put {o} in/on {r}")
"""Commands that put a thing down: from alfworld 0.4 on, and before."""

KINDS: Mapping[str, tuple[str, ...]] = {"tomato": FAMILIES[:1], "all": FAMILIES}
"""Families of each kind of dataset: tomato to microwave, as in the paper, or all six in turn."""

_FLOOR_PLANS: Mapping[str, range] = {"train": range(11, 31), "validation": range(7, 11), "test": range(1, 7)}
"""Floor plans of each kind of room by split; test has ALFWorld's unseen ones, and no floor plan is in two splits."""

_PUT = re.compile(r'action PutObject\s*\{\s*template\s*::\s*"([^"]*)"')
_GOAL = re.compile(r"Your task is to: (.*?)\.\"")
_TARGETS = ("object_target", "parent_target", "toggle_target")


@dataclass(frozen=True)
class Game:
    """One complete game, with everything that is needed to play it."""

    name: str
    """``TASK/TRIAL``, as ALFWorld calls its folders; begins with the family."""
    family: str
    problem: str
    goal: str
    """Goal in words, as the player reads it."""
    targets: Mapping[str, str]
    """``object_target``, ``parent_target`` and ``toggle_target``: kinds, empty where the family has none."""
    domain: str
    grammar: str
    household: int | None = None
    """Number of the household, which keeps each kind of thing at one place; ``None`` if each place was drawn."""

    @property
    def group(self) -> str:
        """The family, and the household if there is one."""
        return self.family if self.household is None else f"{self.family} in household {self.household}"

    def put(self, thing: str, receptacle: str) -> str:
        """Return the command that puts ``tomato 1`` into ``microwave 1``, in the words of the game's grammar."""
        return _put(self.grammar, f"game {self.name!r}").format(o=thing, r=receptacle)


def make_game(
    family: str,
    seed: int,
    *,
    object: str | None = None,
    receptacle: str | None = None,
    scene: int | None = None,
    household: int | None = None,
) -> Game:
    """Make a game; equal arguments make equal games, and every game can be won.

    Args:
        family: one of ``FAMILIES``.
        seed: seed of everything that is drawn, including absent arguments.
        object: the kind of thing that the goal is about.
        receptacle: the kind of furniture to put it in, or the lamp of ``look_at_obj_in_light``.
        scene: number of the floor plan.
        household: number of the household, which keeps each kind of thing at one place; absent: places are drawn.

    Raises:
        InvalidInput: an unknown floor plan, a goal that is impossible in it, or no alfworld.
    """
    rng = random.Random(f"{family} {seed}")
    plans = [first + number for first in ROOMS.values() for number in range(1, PLANS + 1)]
    found = rng.choice(_scenes(family, plans if scene is None else [scene], object, receptacle))
    goals = _goals(family, found, object, receptacle)
    # The thing is drawn first, then its target: among pairs, things that fit everywhere would be drawn most often.
    thing = rng.choice(sorted({thing for thing, _ in goals}))
    target = rng.choice([target for other, target in goals if other == thing])
    lit = family == "look_at_obj_in_light"
    words = rng.choice(rules().templates[family]).format(obj=thing.lower(), recep=target.lower(), toggle=target.lower())
    task = f"{family}-{thing}-None-{target}-{found.number}"
    return Game(
        name=f"{task}/seed-{seed}",
        family=family,
        problem=write_problem(family, found, thing, target, rng, f"plan_{seed}".replace("-", "_"), household),
        goal=words,
        targets=dict(zip(_TARGETS, (thing, "" if lit else target, target if lit else ""), strict=True)),
        domain=rules().domain,
        grammar=rules().grammar.replace("UNKNOWN GOAL", words),
        household=household,
    )


def make_games(
    kind: str,
    split: str,
    count: int,
    seed: int = 0,
    scenes: Sequence[int] | None = None,
    families: Collection[str] = FAMILIES,
    households: int | None = None,
) -> tuple[Game, ...]:
    """Make the games of a split, which shares no game with another split.

    Args:
        kind: one of ``KINDS``.
        split: "train", "validation" or "test".
        count: number of games.
        seed: seed of all games.
        scenes: numbers of the floor plans to play in; ``None`` gives each split separate floor plans.
        families: the families to make, in turn, at least one of which belongs to the kind; a game does not depend on
            the other families.
        households: number of households, each with the first floor plan of each kind of room, in an order of its own,
            in which the family can be played; absent: floor plans and places are drawn for each game.

    Raises:
        InvalidInput: an unknown floor plan, a goal that is impossible in all of them, or no alfworld.
    """
    thing, target = ("Tomato", "Microwave") if kind == "tomato" else (None, None)
    offered = KINDS[kind]
    own_plans = [first + number for first in ROOMS.values() for number in _FLOOR_PLANS[split]]
    plans = own_plans if scenes is None else sorted(set(scenes))
    possible = {family: _scenes(family, plans, thing, target) for family in offered if family in families}
    games: dict[str, Game] = {}
    for number in itertools.count():
        if len(games) == count:
            break
        family = offered[number % len(offered)]
        if family not in possible:
            continue
        own = derive_seed("alfworld", kind, split, seed, number)
        rng = random.Random(own)
        household = None if households is None else rng.randrange(households)
        place = _plan_of(household, possible[family], rng)
        game = make_game(family, own, object=thing, receptacle=target, scene=place, household=household)
        games[game.name] = game
    return tuple(games.values())


def read_game(path: Path) -> Game:
    """Read a ``game.tw-pddl`` and the ``traj_data.json`` beside it, generated here or from a release of ALFWorld.

    Raises:
        InvalidInput: a missing file, one that is not JSON, has another version, or lacks a complete problem.
    """
    data = read_json(path)
    trajectory = read_json(path.with_name("traj_data.json"))
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(key), str):
            raise InvalidInput(f"{path} has no text {key!r}; expected a game of ALFWorld: see alfworld-generate.")
    _check_problem(data["pddl_problem"], path)
    family, parameters = trajectory.get("task_type"), trajectory.get("pddl_params")
    if family not in FAMILIES or not isinstance(parameters, dict):
        raise InvalidInput(
            f"{path.with_name('traj_data.json')} has task_type {family!r} and pddl_params {parameters!r}; expected one "
            f"of {', '.join(FAMILIES)} and an object: text games show no other tasks."
        )
    goal = _GOAL.search(data["grammar"])
    if goal is None:
        raise InvalidInput(f"the grammar in {path} names no task; expected a game of alfworld 0.2 to 0.4.")
    _put(data["grammar"], str(path))
    trial = path.resolve().parent
    return Game(
        name=f"{trial.parent.name}/{trial.name}",
        family=family,
        problem=data["pddl_problem"],
        goal=goal[1],
        targets={key: str(parameters.get(key) or "") for key in _TARGETS},
        domain=data["pddl_domain"],
        grammar=data["grammar"],
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); expected a file of JSON.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} holds a {type(value).__name__}; expected an object of JSON.")
    return value


def _scenes(family: str, plans: list[int], thing: str | None, target: str | None) -> list[Scene]:
    found = [scene(number) for number in plans if _goals(family, scene(number), thing, target)]
    if not found:
        raise InvalidInput(
            f"no game of {family!r} with object {thing or 'any'} and receptacle {target or 'any'} can be made in the "
            f"floor plans {', '.join(map(str, plans))}; choose others, or leave scenes out."
        )
    return found


def _plan_of(household: int | None, possible: Sequence[Scene], rng: random.Random) -> int:
    """Draw a floor plan; in a household, draw the kind of room, which has the first plan in the household's order."""
    if household is None:
        return rng.choice(possible).number
    room = rng.choice(sorted({each.room for each in possible}))
    return min(
        (each.number for each in possible if each.room == room), key=lambda plan: order(household, f"plan {plan}")
    )


def _goals(family: str, place: Scene, thing: str | None, target: str | None) -> list[tuple[str, str]]:
    return [goal for goal in goals_in(family, place) if thing in (None, goal[0]) and target in (None, goal[1])]


def _put(grammar: str, where: str) -> str:
    """Return the one of ``PUTS`` that a grammar has."""
    found = _PUT.search(grammar)
    if found is None or found[1] not in PUTS:
        said = f"says {found[1]!r}" if found else "has no action PutObject"
        raise InvalidInput(
            f"{where} has the grammar of another version, which {said}; expected {' or '.join(map(repr, PUTS))}, as "
            "in alfworld 0.2 to 0.4."
        )
    return found[1]


def _check_problem(text: str, path: Path) -> None:
    """Refuse an incomplete problem, on which the engine's translator would fail with a traceback."""
    code = re.sub(r";.*", "", text)
    missing = [part for part in ("(define", "(:domain", "(:objects", "(:init", "(:goal") if part not in code.lower()]
    if missing or code.count("(") != code.count(")"):
        fault = f"lacks {', '.join(missing)}" if missing else "has unequal numbers of '(' and ')'"
        raise InvalidInput(f"the problem in {path} {fault}; expected whole PDDL: write or download the game again.")
