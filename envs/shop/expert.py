"""``outlook``: the sensible actions of a careful customer, and the tasks that one can fulfil in time.

It knows only what the pages have shown, or a model that learns from it would learn to invent.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache

from reflectrl.core import Task
from reflectrl.envs.shop.catalogue import KINDS, Goal, Product, all_goals
from reflectrl.envs.shop.pages import (
    BUY,
    CHOOSE,
    NEXT,
    OPEN,
    PREVIOUS,
    READ,
    SEARCH,
    TO_RESULTS,
    TO_SEARCH,
    State,
    after,
)


@dataclass(frozen=True)
class Outlook:
    """Assessment of a state, from what the player can know."""

    actions: tuple[str, ...]
    """Actions that are equally good, the expert's first; none after the purchase."""
    standing: str
    """Fact about the state that names no action."""


def outlook(state: State) -> Outlook:
    """Assess a state."""
    if state.bought:
        return Outlook((), "The order is placed.")
    if state.product is not None:
        return _on_product(state.product, state)
    if not state.query:
        return Outlook((SEARCH + state.goal.query,), f"Wanted: {state.goal.query}.")
    return _on_results(state)


def _on_results(state: State) -> Outlook:
    if fitting := _fitting(state):
        return Outlook(tuple(f"{OPEN}{number}" for number in fitting), f"Result {fitting[0]} may fit.")
    if state.query != state.goal.query:
        return Outlook((TO_SEARCH,), "This was not searched for all that is wanted.")
    if any(_fitting(replace(state, page=page)) for page in range(state.page)):
        return Outlook((PREVIOUS,), "A result of an earlier page may fit.")
    more = state.page + 1 < state.pages
    return Outlook((NEXT if more else TO_SEARCH,), "No result here fits.")


def _fitting(state: State) -> list[int]:
    """Return the indices of results that may fit; after a poor search, of those with all attributes in the title."""
    whole = state.query == state.goal.query
    return [
        number
        for number, product in enumerate(state.results, start=1)
        if _fault(product, state) is None and (whole or not _unseen(product, (), state.goal))
    ]


def _on_product(product: Product, state: State) -> Outlook:
    if (fault := _fault(product, state)) is not None:
        return Outlook((TO_RESULTS,), f"It does not fit: {fault}.")
    if unseen := _unseen(product, state.read, state.goal):
        return Outlook((READ["features"],), f"It may fit; not read yet: {', '.join(unseen)}.")
    unchosen = [value for name, value in state.goal.options.items() if state.chosen.get(name) != value]
    if unchosen:
        return Outlook(tuple(CHOOSE + value for value in unchosen), f"It fits; not chosen yet: {', '.join(unchosen)}.")
    return Outlook((BUY,), "It fits, and all is chosen.")


def _fault(product: Product, state: State) -> str | None:
    """Return why a product cannot be the right one, from what its pages have shown; ``None`` if it may be."""
    goal, read = state.goal, state.opened.get(product.id)
    if product.kind.name != goal.kind:
        return f"it is a {product.kind.name}"
    if product.price > goal.limit:
        return "it costs too much"
    for name, value in goal.options.items():
        if read is not None and value not in product.options[name]:
            return f"it does not come in {value}"
    if read is not None and "features" in read and (lacking := _unseen(product, read, goal)):
        return f"it is not {lacking[0]}"
    return None


def _unseen(product: Product, read: Collection[str], goal: Goal) -> list[str]:
    """Return the wanted attributes that appear neither in the title nor in the parts read so far."""
    shown = {*product.attributes[:2]}
    if "description" in read:
        shown.add(product.attributes[2])
    if "features" in read:
        shown.update(product.attributes)
    return [attribute for attribute in goal.attributes if attribute not in shown]


HORIZON = 15
"""Number of steps of an episode, as in RAP (arXiv 2402.03610)."""
SHARES = {"train": (0.0, 0.6), "validation": (0.6, 0.75), "test": (0.75, 1.0)}
"""Part of the shuffled tasks in each split."""


@cache
def goals() -> Mapping[str, Goal]:
    """Return the goal of each task by id, in a fixed random order."""
    reached = [goal for goal in all_goals() if _in_time(goal)]
    random.Random(0).shuffle(reached)
    return {"_".join(goal.query.split()): goal for goal in reached}


@cache
def splits() -> Mapping[str, tuple[Task, ...]]:
    """Return the tasks of each split. A combination of kind and attributes is in one split only."""
    departments = {kind.name: kind.department for kind in KINDS}
    tasks = [Task(id, {"group": departments[goal.kind]}) for id, goal in goals().items()]
    count = len(tasks)
    return {split: tuple(tasks[int(first * count) : int(last * count)]) for split, (first, last) in SHARES.items()}


def _in_time(goal: Goal) -> bool:
    """Return whether the expert, who has to search for the product, buys it within the horizon."""
    state = State(goal)
    for _ in range(HORIZON):
        state = after(state, outlook(state).actions[0])
        if state.bought:
            return state.score == 1
    return False
