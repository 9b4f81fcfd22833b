"""Costs of a run, from its folder: seconds by stage, and calls to chat models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reflectrl.core.jsonl import read_jsonl
from reflectrl.core.layout import CALLS, STAGES
from reflectrl.endpoint.account import Price
from reflectrl.endpoint.journal import REJECTED, REPLIES, read_replies

_SECTIONS = {
    "writer": ("dataset",),
    "teacher": ("data",),
    "reflector": ("players", "reflector"),
    "policy": ("players", "policy"),
}
"""Sections of the recipe with the endpoint of each role."""


@dataclass(frozen=True)
class StageTime:
    """Times of a stage in ``stages.json``."""

    name: str
    done: bool
    wall_seconds: float
    """Wall seconds of its last start; 0 before its end."""
    cpu_seconds: float


@dataclass(frozen=True)
class Calls:
    """Replies to one role."""

    role: str
    model: str
    """Empty where the recipe does not say."""
    replies: int
    rejected: int
    """Calls that were set aside without a usable reply."""
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    """``None`` without a price in the recipe."""


def stage_times(ledger: Mapping[str, Any]) -> tuple[StageTime, ...]:
    """Return the stages that a ledger has, in their order."""
    return tuple(
        StageTime(name, entry.get("done") is True, number(entry, "wall_seconds"), number(entry, "cpu_seconds"))
        for name in STAGES
        if isinstance(entry := ledger.get(name), dict)
    )


def read_calls(run: Path, recipe: Mapping[str, Any]) -> tuple[Calls, ...]:
    """Read the replies to each role in the folder ``run``; empty where no chat model was asked.

    Raises:
        InvalidInput: a damaged file.

    """
    return tuple(_calls(path.parent, recipe) for path in sorted((run / CALLS).glob(f"*/{REPLIES}")))


def _calls(folder: Path, recipe: Mapping[str, Any]) -> Calls:
    # a Journal would repair the files that it reads; a report changes nothing
    replies = read_replies(folder)
    paid = [reply for reply in replies if reply.text is not None or reply.tokens.prompt]  # others revoke a reply
    endpoint = _endpoint(recipe, folder.name)
    price = _price(part(endpoint, "price"))
    rejected = folder / REJECTED
    return Calls(
        role=folder.name,
        model=endpoint["model"] if isinstance(endpoint.get("model"), str) else "",
        replies=len(paid),
        rejected=sum(1 for _ in read_jsonl(rejected)) if rejected.is_file() else 0,
        prompt_tokens=sum(reply.tokens.prompt for reply in paid),
        completion_tokens=sum(reply.tokens.completion for reply in paid),
        dollars=None if price is None else sum(reply.tokens.cost(price, batch=reply.batch) for reply in paid),
    )


def _endpoint(recipe: Mapping[str, Any], role: str) -> Mapping[str, Any]:
    kind, _, name = role.partition("-")
    if kind != "eval":
        return part(recipe, *_SECTIONS.get(kind, ()), "endpoint")
    listed = part(recipe, "eval").get("reflectors")
    named = (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()
    return part(next((each for each in named if each.get("name") == name), {}), "endpoint")


def _price(section: Mapping[str, Any]) -> Price | None:
    if not isinstance(section.get("prompt"), int | float):
        return None
    cached = number(section, "cached") if section.get("cached") is not None else None
    return Price(number(section, "prompt"), number(section, "completion"), cached)


def part(values: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Return the mapping at ``names``, one inside the other; empty where there is none."""
    for name in names:
        found = values.get(name)
        values = found if isinstance(found, dict) else {}
    return values


def number(values: Mapping[str, Any], name: str, default: float = 0.0) -> float:
    """Return the number called ``name``, within reason; ``default`` where there is none."""
    found = values.get(name)
    return float(found) if isinstance(found, int | float) and abs(found) < 1e12 else default


def total_dollars(calls: Sequence[Calls]) -> float | None:
    """Return the dollars of all roles; ``None`` where the price of one is not known."""
    known = [each.dollars for each in calls if each.dollars is not None]
    return sum(known) if len(known) == len(calls) else None
