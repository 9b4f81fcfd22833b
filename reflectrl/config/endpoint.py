"""The chat endpoints that a recipe uses, and their budget."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

from reflectrl.config.evaluation import ReflectorSection
from reflectrl.config.prices import ENDPOINTS
from reflectrl.config.schema import Recipe
from reflectrl.core.layout import CALLS
from reflectrl.endpoint.account import Account
from reflectrl.endpoint.journal import Journal


def eval_role(section: ReflectorSection) -> str:
    """Return the role name under which calls to a reflector of the evaluation are recorded."""
    return f"eval-{section.name}"


def open_account(recipe: Recipe, run: Path, max_cost: float | None = None, *, processes: int = 1) -> Account:
    """Return the account of a run folder, with the amount spent in it so far.

    Args:
        recipe: the recipe, which states the prices.
        run: the run folder.
        max_cost: total budget of the folder in US dollars.
        processes: number of processes that work in the folder at the same time; each gets an equal part of the rest.

    Raises:
        InvalidInput: a budget that is not above 0, or a damaged file.

    """
    sections = {role: attrgetter(name)(recipe) for role, name in ENDPOINTS.items()}
    known = {role: section.endpoint for role, section in sections.items() if section is not None}
    others = {eval_role(each): each.endpoint for each in recipe.eval.reflectors if each.endpoint is not None}
    account = Account(max_cost)
    for folder in sorted((run / CALLS).glob("*")):
        endpoint = others.get(folder.name) or known.get(folder.name.partition("-")[0])
        if endpoint is not None:
            account.count(Journal(folder).paid, endpoint.price)
    return account.divided(processes)
