"""``DangerousTaxi``: gymnasium's taxi as text, where any mistake ends the episode (section 5 and appendix D.1).

A state of the world is gymnasium's number, 0 to 499, of (taxi row, taxi column, passenger, destination). What is read
from ``Taxi-v4`` is constant, so it is computed once a process.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from gymnasium.envs.toy_text.taxi import TaxiEnv

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task, nearest

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


HORIZONS = {"pickup": 15, "dropoff": 30, "full": 30}
"""Steps of each stage, as in appendix E."""
UNSEEN = "unseen_destination"
"""The split of all starts towards ``UNSEEN_DESTINATION``. A ride's destination never changes, so no start of another
split can reach these starts or the states after them, with any actions. Test starts, in contrast, lie on the paths of
training episodes."""
UNSEEN_DESTINATION = LANDMARKS.index("blue")
STEP, ILLEGAL, REACHED = -1 / 20, -10 / 20, 20 / 20
"""Gymnasium's rewards, divided by 20 so that they stay within [-1, 1]; walls are illegal, as in the public code."""


def _task(state: int) -> Task:
    taxi, passenger, destination = parts(state)
    origin = (*LANDMARKS, "aboard")[passenger]
    return Task(f"{origin}-to-{LANDMARKS[destination]}-r{taxi.row}c{taxi.column}", {"state": state, "group": origin})


@cache
def _splits(aboard: bool) -> dict[str, tuple[Task, ...]]:
    """Return the splits: 300 waiting passengers as 152/28/45 and 75 unseen, or 100 aboard as 44/14/17 and 25 unseen.

    ``pickup`` and ``full`` share the first, so that no test start of one is a training start of the other.
    """
    starts = [s for s in STATES if parts(s).aboard == aboard and not parts(s).delivered]
    random.Random(0).shuffle(starts)
    train, validation = (60, 20) if aboard else (200, 40)
    cut = train + validation
    shares = {"train": starts[:train], "validation": starts[train:cut], "test": starts[cut:]}
    unseen = {s for s in starts if parts(s).destination == UNSEEN_DESTINATION}
    splits = {split: tuple(_task(s) for s in share if s not in unseen) for split, share in shares.items()}
    return {**splits, UNSEEN: tuple(_task(s) for s in starts if s in unseen)}


class DangerousTaxi(NatLangEnv):
    """Gymnasium's taxi as text, where any mistake ends the episode (section 5 of the paper).

    Rewards: -0.05 per step, +1 at the stage's goal. An action without effect, or a drop-off at the wrong place, is
    rewarded with -0.5 and ends the episode. All six actions are always on the menu, so the policy has to learn which
    are safe.

    ``pickup`` and ``full`` share 300 tasks and their splits, ``dropoff`` has another 100. No training episode begins at
    a start of the test, but RLFT passes through all of these states. Tasks to the blue landmark form the split
    ``unseen_destination``, no state of which is ever seen in training.

    Args:
        stage: ``pickup`` (drive to the passenger), ``dropoff`` (with the passenger to the destination), or ``full``.
        horizon: maximum number of steps; absent: 15 for ``pickup``, 30 for the others.
        milestone: keep the +1 of the pickup in ``full`` (section 4.4).
    """

    name = "dangerous_taxi"
    further_splits = (UNSEEN,)
    max_actions = len(ACTIONS)
    instructions = (
        "You drive a taxi on a map of 5 rows and 5 columns. Rows count from 0 in the north, columns from 0 in the "
        "west. T is your taxi, P the waiting passenger, D the destination, O your taxi on the passenger's square, X "
        "your taxi with the passenger aboard; the taxi hides a D below it. Between two squares of a row, : is open and "
        "| is a wall. Pick up the passenger, then drop it off at the destination, in as few steps as you can. Any "
        "mistake ends the game: driving into a wall or off the map, picking up where nobody waits, dropping off "
        "anywhere else."
    )

    def __init__(self, stage: str = "pickup", horizon: int | None = None, milestone: bool = True) -> None:
        if stage not in HORIZONS:
            raise InvalidInput(f"stage {stage!r} of {self.name!r} is unknown; {nearest(str(stage), HORIZONS)}")
        super().__init__(HORIZONS[stage] if horizon is None else horizon)
        self.stage = stage
        self.milestone = milestone
        self._splits = _splits(aboard=stage == "dropoff")
        self._starts = {task.options["state"] for tasks in self._splits.values() for task in tasks}
        self._left = distances(to_pickup=stage == "pickup")

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the start states of a split, in a fixed shuffled order."""
        return self._splits[split]

    def start(self, task: Task) -> None:
        state = task.options.get("state")
        if not isinstance(state, int) or state not in self._starts:
            raise InvalidInput(
                f"task {task.id!r} does not start stage {self.stage!r} of {self.name!r}; use env.tasks(split)."
            )
        self._state = self._previous = state

    def observe(self) -> Observation:
        """Return the map and all six actions."""
        return Observation(map_text(self._state), ACTIONS, common=ACTIONS)

    def act(self, action: str) -> Outcome:
        move = ACTIONS.index(action)
        following = after(self._state, move)
        self._previous = self._state
        if following is None:
            return Outcome(ILLEGAL, ended=True, illegal=True)
        self._state = following
        if self._left[following] == 0:
            return Outcome(REACHED, ended=True, success=True)
        return Outcome(REACHED if move == PICK_UP and self.milestone else STEP)

    def expert(self) -> str | None:
        """Return the first action of a shortest path to the stage's goal; ``None`` at the goal."""
        for move, action in enumerate(ACTIONS):
            following = after(self._state, move)
            if following is not None and self._left[following] < self._left[self._state]:
                return action
        return None

    def reflection(self) -> str | None:
        """Judge the last action and describe the state, without naming the next action."""
        if self.last_action is None:
            return self._standing()
        return f"{'Mistake' if self.mistaken() else 'Good'}. {self._standing()}"

    def mistaken(self) -> bool | None:
        """Return whether the last action brought the goal no nearer."""
        return None if self.last_action is None else self._left[self._state] >= self._left[self._previous]

    def spoiler(self) -> str | None:
        """Return everything that a teaching model could work out from the map."""
        return f"{super().spoiler()}. {self._standing()} Actions left at best: {self._left[self._state]}."

    def _standing(self) -> str:
        state = parts(self._state)
        if state.aboard:
            return f"Taxi at {state.taxi}, destination at {landmark(state.destination)}."
        return f"Taxi at {state.taxi}, passenger at {landmark(state.passenger)}."
