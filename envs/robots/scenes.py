"""The five tasks that RAP took from Meta-World: the things on the table, in words, and the stages of each task.

Offsets of the hand follow Meta-World's scripted policies. Directions are the robot's: x to its right, y away from it, z
up. Everything that a player or the expert reads is in whole centimetres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

OPEN, CLOSE, LIFT, PUSH, PULL = "open the gripper", "close the gripper", "lift the hand", "push forward", "pull back"
ABOVE, LOWER, FRONT = "move above", "lower to", "move in front of"
EMPTY = 0.35
"""Opening of the gripper, from 0 to 1, below which it is closed on nothing."""
NEAR_CM = 2
"""Maximum distance in a direction that is not mentioned, in centimetres."""
LYING_M = 0.05
"""Height in metres below which a thing lies on the table."""
_SIDES = (("right of", "left of"), ("behind", "in front of"), ("above", "below"))


class Offset(NamedTuple):
    """Position of one thing as seen from another, in whole centimetres."""

    x: int
    y: int
    z: int

    @classmethod
    def between(cls, thing: Any, other: Any) -> Offset:
        """Return the position of ``thing`` as seen from ``other``; both are (3,), in metres."""
        return cls(*(int(round(100 * part)) for part in np.subtract(thing, other)))

    @property
    def words(self) -> str:
        """Distances and directions, such as ``12 cm left of and 5 cm above``; ``at`` if all are small."""
        told = [
            f"{abs(part)} cm {sides[part < 0]}" for part, sides in zip(self, _SIDES, strict=True) if abs(part) > NEAR_CM
        ]
        return " and ".join(filter(None, (", ".join(told[:-1]), *told[-1:]))) or "at"


class Stage(NamedTuple):
    """A stage on the way to success."""

    left: int
    """Rank of the stage: 1 is the last one before success, and larger numbers are further from it."""
    standing: str
    """Description of the stage, which names no skill."""
    action: str


@dataclass(frozen=True)
class Thing:
    """A thing that the hand can move to."""

    name: str
    place: slice
    """Slice of its position in Meta-World's observation."""
    touch: tuple[float, float, float]
    """Offset in metres from its position to a hand that touches it, or that holds what belongs there."""
    above: float = 0.12
    """Height in metres of a hand above it, relative to the touching hand."""
    walls: tuple[float, float] | None = None
    """Minimum and maximum y of a hand that reaches for it where it lies, so that no wall stops the fingers."""

    def position(self, seen: Any) -> Any:
        """Return the thing's position from an observation of Meta-World: (3,), in metres."""
        return seen[self.place]

    def hand(self, seen: Any) -> Any:
        """Return the position of a hand that touches it: (3,), in metres."""
        x, y, z = self.position(seen) + self.touch
        if self.walls is not None and z - self.touch[2] < LYING_M:
            y = min(max(y, self.walls[0]), self.walls[1])
        return np.array([x, y, z])


@dataclass(frozen=True)
class Scene:
    """One of the five tasks."""

    simulated: str
    goal: str
    thing: Thing
    """Thing that the hand moves to first."""
    last: str
    """The skill that leads to success."""
    target: Thing | None = None
    """Target that the thing is carried to; ``None`` if it stays in its place."""
    carried: str = ""
    """Name of the part of the thing that has to reach the target."""
    part: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Offset in metres from the thing's position to that part."""
    progress: str = ""
    """Sentence on the movement so far, if nothing is carried, with ``{moved}`` and ``{all}``."""
    range: int = 0
    """Distance from the start to the goal, in centimetres."""
    ways: ClassVar[tuple[str, ...]] = (ABOVE, LOWER, FRONT)
    """Skills that take a thing as argument."""
    moves: ClassVar[tuple[str, ...]] = (OPEN, CLOSE, LIFT, PUSH, PULL)
    """Skills without an argument."""
    stroke: ClassVar[float] = 0.25
    """Distance in metres by which the hand pushes and pulls."""
    clear_cm: int | None = None
    """Height above the target at which the carried part clears its surroundings; ``None`` if there are none."""

    @property
    def things(self) -> Sequence[Thing]:
        """Everything that the hand can move to."""
        return (self.thing,) if self.target is None else (self.thing, self.target)

    @property
    def actions(self) -> tuple[str, ...]:
        """All skills, wise or not."""
        return (*(f"{way} the {thing.name}" for thing in self.things for way in self.ways), *self.moves)

    @property
    def grasped(self) -> bool:
        """True if the gripper has to hold the thing."""
        return self.target is not None

    def text(self, seen: Any, closed: bool) -> str:
        """Describe an observation of Meta-World in words; ``closed`` says whether the fingers press together."""
        hand = f"The hand is {self.reach(seen).words} the {self.thing.name}."
        if self.target is None:
            rest = self.progress.format(moved=max(0, self.moved(seen)), all=self.range)
        else:
            rest = f"The {self.carried} is {self._carriage(seen).words} the {self.target.name}."
        holds = closed and self.held(seen)
        gripper = f"holds the {self.thing.name}" if holds else "is closed" if closed else "is open"
        return f"{hand} {rest} The gripper {gripper}."

    def moved(self, seen: Any) -> int:
        """Return how far the thing has been moved, if nothing is carried."""
        return self.range - round(100 * float(np.linalg.norm(seen[36:39] - self.thing.position(seen))))

    def stage(self, seen: Any, closed: bool) -> Stage:
        """Return the stage that the text's facts imply."""
        return self._moving(seen) if self.target is None else self._carrying(seen, closed, self.target)

    def _moving(self, seen: Any) -> Stage:
        name, hand = self.thing.name, self.reach(seen)
        if self.last == PUSH:
            if is_ahead(hand):
                return Stage(1, f"The hand is in front of the {name}", PUSH)
            if hand.y > 0 and hand.z <= NEAR_CM:
                return Stage(3, f"The hand is behind the front of the {name}", LIFT)
            return Stage(2, f"The hand is not in front of the {name}", f"{FRONT} the {name}")
        return self._approach(hand) or Stage(1, f"The hand is at the {name}", self.last)

    def _carrying(self, seen: Any, closed: bool, target: Thing) -> Stage:
        name = self.thing.name
        if not (closed and self.held(seen)):
            if closed:
                return Stage(7, f"The gripper is closed and does not hold the {name}", OPEN)
            at_it = Stage(4, f"The hand is at the {name}, which is not held", CLOSE)
            return self._approach(self.reach(seen), 3) or at_it
        load, what = self._carriage(seen), f"The {name} is held"
        if self.last == PUSH:
            ready, way, where = is_ahead(load), FRONT, "in front of"
        else:
            ready, way, where = _level(load) and load.z > NEAR_CM, ABOVE, "above"
        if ready:
            return Stage(1, f"{what} {where} the {target.name}", self.last)
        if self.clear_cm is not None and load.z < self.clear_cm:
            return Stage(3, f"{what}, too low to be carried", LIFT)
        return Stage(2, f"{what}, not {where} the {target.name}", f"{way} the {target.name}")

    def _approach(self, hand: Offset, after: int = 0) -> Stage | None:
        """Return the stage of a hand that has not reached the thing yet; ``after`` skills follow the last one."""
        name = self.thing.name
        if not _level(hand):
            return Stage(after + 3, f"The hand is not above the {name}", f"{ABOVE} the {name}")
        if abs(hand.z) > NEAR_CM:
            return Stage(after + 2, f"The hand is above the {name}", f"{LOWER} the {name}")
        return None

    def reach(self, seen: Any) -> Offset:
        """Return the position of the hand relative to the one in which it touches the thing."""
        return Offset.between(seen[:3], self.thing.hand(seen))

    def _carriage(self, seen: Any) -> Offset:
        assert self.target is not None
        return Offset.between(self.thing.position(seen) + self.part, self.target.position(seen))

    def held(self, seen: Any) -> bool:
        """Return whether a closed gripper holds the thing."""
        return self.grasped and bool(seen[3] > EMPTY) and self.reach(seen).words == "at"


def _level(offset: Offset) -> bool:
    return abs(offset.x) <= NEAR_CM and abs(offset.y) <= NEAR_CM


def is_ahead(offset: Offset) -> bool:
    """Return whether ``offset`` is straight in front of the other thing."""
    return abs(offset.x) <= NEAR_CM and abs(offset.z) <= NEAR_CM and offset.y < -NEAR_CM


_FIRST, _SECOND, _GOAL = slice(4, 7), slice(11, 14), slice(36, 39)
SCENES = {
    "assembly": Scene(
        "assembly-v3",
        "put the nut onto the peg",
        Thing("nut", _FIRST, (-0.02, 0.0, 0.03)),
        f"{LOWER} the peg",
        Thing("peg", _GOAL, (0.12, 0.0, -0.06), above=0.2),
        carried="hole of the nut",
        part=(-0.13, 0.0, 0.0),
    ),
    "button": Scene(
        "button-press-v3",
        "press the button",
        Thing("button", _FIRST, (0.0, -0.05, -0.07)),
        PUSH,
        progress="The button is pressed by {moved} of {all} cm.",
        range=9,
    ),
    "drawer": Scene(
        "drawer-open-v3",
        "open the drawer",
        Thing("handle", _FIRST, (0.0, 0.0, -0.02)),
        PULL,
        progress="The drawer is open by {moved} of {all} cm.",
        range=20,
    ),
    "hammer": Scene(
        "hammer-v3",
        "drive the nail into the box with the hammer",
        Thing("hammer", _FIRST, (-0.04, 0.0, 0.02)),
        PUSH,
        Thing("nail", _SECOND, (-0.19, -0.03, 0.05)),
        carried="head of the hammer",
        part=(0.16, 0.06, -0.03),
    ),
    "bin": Scene(
        "bin-picking-v3",
        "carry the puck from the left bin to the right bin",
        Thing("puck", _FIRST, (0.0, 0.0, 0.04), walls=(0.675, 0.725)),
        f"{LOWER} the right bin",
        Thing("right bin", _GOAL, (0.0, 0.0, 0.02), above=0.14),
        carried="puck",
        clear_cm=10,
    ),
}
"""Scenes by name of the task, with the words of table 9 in the paper's appendix."""
