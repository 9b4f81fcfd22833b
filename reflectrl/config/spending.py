"""The chat endpoints that a recipe uses, and their budget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from reflectrl.config.schema import Recipe
from reflectrl.core import InvalidInput
from reflectrl.core.addresses import section_at
from reflectrl.core.run_files import CALLS
from reflectrl.endpoint.account import Account, Price, of_role
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import read_replies
from reflectrl.seats import SEATS
from reflectrl.seats.table import POLICY

_SECTIONS = {
    "writer": "dataset",
    "teacher": "data",
    POLICY.name: f"players.{POLICY.name}",
    **{kind.role.name: f"players.{kind.role.name}" for kind in SEATS if kind.asks},
}
"""Section of the recipe with the endpoint of each role."""
_DEFAULTS = Endpoint()


def eval_role(name: object) -> str:
    """Return the role name under which calls to a reflector of the evaluation are recorded."""
    return f"eval-{name}"


def endpoints_of(values: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the endpoints in a recipe's values, which may have mistakes: by role, the dotted key and what is there."""
    listed = section_at(values, "eval").get("reflectors")
    others = {
        eval_role(each.get("name")): f"eval.reflectors.{number}"
        for number, each in enumerate(listed if isinstance(listed, list) else ())
        if isinstance(each, dict)
    }
    keys = {role: f"{section}.endpoint" for role, section in {**_SECTIONS, **others}.items()}
    return {role: (key, section) for role, key in keys.items() if (section := section_at(values, key))}


def price_mistakes(before: Any, after: Any, states: Callable[[str], bool]) -> list[str]:
    """Return a mistake for each price that a change left to an endpoint whose model or server it changed.

    ``before`` and ``after`` are the values of a recipe; ``states`` tells whether the change states the price at a key.
    """

    def server(section: dict[str, Any]) -> list[Any]:
        return [section.get(key, getattr(_DEFAULTS, key)) for key in ("model", "base_url", "azure_api_version")]

    return [
        f"{where}.price: it was given for model {server(then)[0]!r}, but model or server were changed; give the price "
        "of the new one, or null where it is free or not known."
        for where, now in endpoints_of(after).values()
        if (then := section_at(before, where)).get("price") and now.get("price") and server(then) != server(now)
        if not states(f"{where}.price")
    ]


def open_account(recipe: Recipe, run: Path, max_cost: float | None = None, *, processes: int = 1) -> Account:
    """Return the account of a run folder, with the amount spent in it so far.

    ``max_cost`` is the total budget of the folder in US dollars, of whose rest each of ``processes`` that work in it at
    the same time gets an equal part.

    Raises:
        InvalidInput: a budget that is not above 0, or that cannot be compared with what a role no longer in the recipe
            has spent; a damaged file.
    """
    endpoints = endpoints_of(recipe.model_dump())
    account = Account(max_cost, {role: key for role, (key, _) in endpoints.items()})
    for folder in sorted((run / CALLS).glob("*")):
        _, section = of_role(endpoints, folder.name) or ("", {})
        price = section.get("price")
        replies = [reply for reply in read_replies(folder) if reply.text is not None or reply.tokens.prompt]
        paid = [(reply.tokens, reply.batch) for reply in replies]
        if max_cost is not None and paid and not section:
            raise InvalidInput(
                f"a budget of {max_cost:g} USD was given for {run}, but {folder} holds {len(paid)} paid calls of a "
                "role that the recipe has no endpoint for, so their cost is unknown; name the endpoint in the recipe "
                "again, move that folder away, or leave the budget out."
            )
        account.count(paid, None if price is None else Price(**price))
    return account.divided(processes)
