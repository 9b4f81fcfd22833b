"""Rules and floor plans from the alfworld package: which furniture and things exist."""

from __future__ import annotations

import importlib.util
import json
import random
import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reflectrl.core import InvalidInput

INSTALL = "pip install 'reflectrl[alfworld]'"

FAMILIES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
"""The task types that text games can represent; the seventh of ALFRED moves receptacles, which the engine cannot."""

ROOMS: Mapping[str, int] = {"Kitchen": 0, "LivingRoom": 200, "Bedroom": 300, "Bathroom": 400}
"""Number of the first floor plan of each kind of room."""
PLANS = 30
"""Number of floor plans of each kind."""

LAMP = "DeskLamp"
LAMP_STANDS = frozenset({"CoffeeTable", "Desk", "DiningTable", "Dresser", "Shelf", "SideTable"})

_WITHOUT_POSE: Mapping[str, int] = {
    "CoffeeMachine": 1,
    "GarbageCan": 1,
    "HandTowelHolder": 1,
    "LaundryHamper": 1,
    "StoveBurner": 4,
    "Toaster": 1,
    "Toilet": 1,
    "ToiletPaperHanger": 1,
    "TowelHolder": 1,
}
"""Furniture that a floor plan names without a position, and the number of pieces to place."""


@dataclass(frozen=True)
class Rules:
    """The engine's language and ALFRED's common-sense rules."""

    domain: str
    grammar: str
    """Grammar text, with ``UNKNOWN GOAL`` as the goal."""
    goals: Mapping[str, str]
    """Goals in PDDL by family; the text closes the problem's first parenthesis as well."""
    templates: Mapping[str, tuple[str, ...]]
    """Goals in words by family."""
    rooms: Mapping[str, frozenset[str]]
    """Kinds of room in which a family makes sense."""
    holds: Mapping[str, frozenset[str]]
    """Things that may lie in each kind of furniture."""
    openable: frozenset[str]
    containers: frozenset[str]
    """Things that hold other things, like bowls."""
    properties: Mapping[str, frozenset[str]]
    """Things by property: cleanable, heatable, coolable, toggleable, sliceable."""


@dataclass(frozen=True)
class Receptacle:
    """A piece of furniture."""

    id: str
    """Id as in the floor plan: ``Cabinet|+00.68|+00.50|-02.20``."""
    kind: str
    location: str
    """Location of the agent when using it; several receptacles may share one."""


@dataclass(frozen=True)
class Scene:
    """A floor plan."""

    number: int
    room: str
    receptacles: tuple[Receptacle, ...]
    things: tuple[str, ...]
    """Kinds of things that can be picked up here."""
    lamp: bool
    """True if there is a desk lamp and furniture that it may stand on."""

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of its furniture."""
        return frozenset(receptacle.kind for receptacle in self.receptacles)


def package_file(*parts: str) -> Path:
    """Return the path of a file of the alfworld package, whose import would make a folder in the user's home."""
    found = importlib.util.find_spec("alfworld")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(f"games of ALFWorld need the package alfworld, which is not installed; run {INSTALL}.")
    return Path(found.submodule_search_locations[0], *parts)


@cache
def rules() -> Rules:
    """Return the rules, read once in a process."""
    known: dict[str, Any] = {
        **runpy.run_path(str(package_file("gen", "constants.py"))),
        **runpy.run_path(str(package_file("gen", "goal_library.py"))),
    }
    movable = frozenset(known["MOVABLE_RECEPTACLES"])
    holds = {kind: frozenset(things) for kind, things in known["VAL_RECEPTACLE_OBJECTS"].items()}
    return Rules(
        domain=package_file("data", "alfred.pddl").read_text(encoding="utf-8"),
        grammar=package_file("data", "alfred.twl2").read_text(encoding="utf-8"),
        goals={family: known["gdict"][family]["pddl"].replace("#", "-") for family in FAMILIES},
        templates={family: tuple(known["gdict"][family]["templates"]) for family in FAMILIES},
        rooms={family: frozenset(known["GOALS_VALID"][family]) for family in FAMILIES},
        holds={kind: holds[kind] for kind in sorted(holds) if kind in known["RECEPTACLES"] and kind not in movable},
        openable=frozenset(known["OPENABLE_CLASS_LIST"]) - movable,
        containers=movable,
        properties={name.lower(): frozenset(things) for name, things in sorted(known["VAL_ACTION_OBJECTS"].items())},
    )


@cache
def scene(number: int) -> Scene:
    """Return a floor plan, read once in a process."""
    room = next((room for room, first in ROOMS.items() if first < number <= first + PLANS), None)
    if room is None:
        spans = ", ".join(f"{first + 1} to {first + PLANS} ({room})" for room, first in ROOMS.items())
        raise InvalidInput(f"floor plan {number} does not exist; expected {spans}.")
    poses = _layout(f"FloorPlan{number}-openable.json")
    names = _layout(f"FloorPlan{number}-objects.json")
    holds = rules().holds
    receptacles = [
        Receptacle(id, _kind(id), f"loc|{round(x / 0.25)}|{round(z / 0.25)}|{angle}|{horizon}")
        for id, (x, z, angle, horizon) in sorted(poses.items())
        if _kind(id) in holds
    ]
    posed = {receptacle.kind for receptacle in receptacles}
    receptacles += _furniture([kind for kind in _WITHOUT_POSE if kind in names and kind not in posed], number)
    kinds = {receptacle.kind for receptacle in receptacles}
    return Scene(
        number,
        room,
        tuple(receptacles),
        tuple(sorted(name for name in set(names) if any(name in holds[kind] for kind in kinds))),
        LAMP in names and not kinds.isdisjoint(LAMP_STANDS),
    )


def _layout(name: str) -> Any:
    return json.loads(package_file("gen", "layouts", name).read_text(encoding="utf-8"))


def _kind(receptacle: str) -> str:
    """Return the kind of a receptacle: SinkBasin for ``Sink|...|SinkBasin``, for others the first part."""
    first, _, rest = receptacle.partition("|")
    return f"{first}Basin" if rest.endswith("Basin") else first


def _furniture(kinds: list[str], number: int) -> list[Receptacle]:
    """Return the furniture of a floor plan without positions; two stove burners share a location, outside the rooms."""
    rng = random.Random(f"furniture of floor plan {number}")
    return [
        Receptacle(f"{kind}|{point(rng)}", kind, f"loc|{100 + row}|{copy // 2}|0|30")
        for row, kind in enumerate(kinds)
        for copy in range(_WITHOUT_POSE[kind])
    ]


def point(rng: random.Random) -> str:
    """Return coordinates in the form of AI2-THOR's ids."""
    return "|".join(f"{rng.uniform(-4, 4):+06.2f}" for _ in range(3))
