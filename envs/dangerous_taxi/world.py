"""The taxi's world, read from gymnasium's ``Taxi-v4``: legal moves, distances and the map as text.

A state is gymnasium's number, 0 to 499, of (taxi row, taxi column, passenger, destination). Everything here is
constant, so it is computed once a process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from gymnasium.envs.toy_text.taxi import TaxiEnv

ACTIONS = ("move south", "move north", "move east", "move west", "pick up", "drop off")
"""Actions in gymnasium's order."""
PICK_UP, DROP_OFF = 4, 5
ABOARD = 4
"""Index of a passenger in the taxi; 0 to 3 are the landmarks."""
LANDMARKS = ("red", "green", "yellow", "blue")
STATES = range(500)


class Cell(NamedTuple):
    """A square of the map, counted from the north-west corner."""

    row: int
    column: int

    def __str__(self) -> str:
        """Return the cell's position as reflections name it."""
        return f"row {self.row} column {self.column}"


class TaxiState(NamedTuple):
    """The parts of a state."""

    taxi: Cell
    passenger: int
    """Index of a landmark, or ``ABOARD``."""
    destination: int
    """Index of a landmark."""

    @property
    def aboard(self) -> bool:
        """True if the passenger is in the taxi."""
        return self.passenger == ABOARD

    @property
    def delivered(self) -> bool:
        """True if the passenger is at the destination."""
        return self.passenger == self.destination


@cache
def _taxi() -> TaxiEnv:
    return TaxiEnv()


@cache
def parts(state: int) -> TaxiState:
    """Return the parts of a state."""
    row, column, passenger, destination = (int(part) for part in _taxi().decode(state))
    return TaxiState(Cell(row, column), passenger, destination)


@cache
def landmark(index: int) -> Cell:
    """Return the cell of a landmark."""
    return Cell(*_taxi().locs[index])


@cache
def after(state: int, action: int) -> int | None:
    """Return the next state; ``None`` if the action is forbidden: no effect, or a drop-off short of the destination."""
    _, following, _, delivered = _taxi().P[state][action][0]
    if following == state or (action == DROP_OFF and not delivered):
        return None
    return int(following)


@cache
def distances(to_pickup: bool) -> Mapping[int, int]:
    """Return the fewest actions from each state until the passenger is aboard, or else until the delivery."""
    before: dict[int, list[int]] = {}
    for state in STATES:
        for action in range(len(ACTIONS)):
            following = after(state, action)
            if following is not None:
                before.setdefault(following, []).append(state)
    found = {state: 0 for state in STATES if (parts(state).aboard if to_pickup else parts(state).delivered)}
    queue = deque(found)
    while queue:
        here = queue.popleft()
        for state in before.get(here, []):
            if state not in found:
                found[state] = found[here] + 1
                queue.append(state)
    return MappingProxyType(found)


@cache
def map_text(state: int) -> str:
    """Return five rows of squares with the walls (``|``) and passages (``:``) between them.

    T taxi, P passenger, D destination, O taxi on the waiting passenger's square, X taxi with the passenger. The taxi
    hides a D below it, and no other map lacks a D, so the text still distinguishes all states.
    """
    taxi, passenger, destination = parts(state)
    grid = [[cell.decode() for cell in row[1:-1]] for row in _taxi().desc[1:-1]]
    for row in grid:
        row[::2] = " " * len(row[::2])

    def put(cell: Cell, letter: str) -> None:
        grid[cell.row][2 * cell.column] = letter

    put(landmark(destination), "D")
    if passenger == ABOARD:
        put(taxi, "X")
    else:
        put(landmark(passenger), "P")
        put(taxi, "O" if taxi == landmark(passenger) else "T")
    return "\n".join("".join(row) for row in grid)
