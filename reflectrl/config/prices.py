"""Prices belong to the model and server that they were written for; another endpoint must not inherit them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reflectrl.config.endpoint import endpoints_of
from reflectrl.core.addresses import is_loopback, without_credentials
from reflectrl.core.nested import section_at
from reflectrl.endpoint.endpoint import Endpoint

_SERVER = ("model", "base_url", "azure_api_version")
_DEFAULTS = Endpoint()
_FREE = {"prompt": 0.0, "completion": 0.0}


ABSENT = object()
"""Marker for a change that states no price."""


def drop_foreign_prices(before: Any, after: Any, given: Callable[[str], Any]) -> list[str]:
    """Remove prices from ``after`` that were written for other endpoints; return a sentence about each.

    Args:
        before: values of a recipe.
        after: the values after a change (an extending recipe, or overrides); a server on this machine gets the price 0.
        given: returns the price that the change states for the endpoint at a dotted key, or ``ABSENT``.

    """
    said = []
    for where, now in endpoints_of(after).values():
        then = section_at(before, where)
        if None in (then.get("price"), now.get("price")) or _server(then) == _server(now):
            continue
        if (price := given(where)) is not ABSENT:
            now["price"] = price  # without fields merged from the old price
            continue
        url = now.get("base_url")
        free = isinstance(url, str) and is_loopback(url)
        now["price"] = dict(_FREE) if free else None
        said.append(
            f"note: the price in {where} is that of {_words(then)}, not of {_words(now)}, "
            f"{'whose calls count as free' if free else 'whose price is not known'}; set {where}.price to say it."
        )
    return said


def _server(section: dict[str, Any]) -> list[Any]:
    return [_value(section, key) for key in _SERVER]


def _value(section: dict[str, Any], key: str) -> Any:
    return section.get(key, getattr(_DEFAULTS, key))


def _words(section: dict[str, Any]) -> str:
    url = without_credentials(_value(section, "base_url"))
    return f"model {_value(section, 'model')!r} at {url or 'OpenAI'}"
