"""``progress``: the fraction of a game's conditions that hold in a state, as ALFRED counts them for its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from reflectrl.envs.alfworld.expert import SERVICES, State
from reflectrl.envs.alfworld.games import Game

if TYPE_CHECKING:
    from reflectrl.envs.alfworld.engine import Position


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
