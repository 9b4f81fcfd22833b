"""Dotted keys and texts of nested mappings, such as recipes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def dotted(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys, ``{"rlft.gamma": 0.9}``; lists are kept as values."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        key: leaf for name, part in value.items() for key, leaf in dotted(part, f"{path}.{name}".strip(".")).items()
    }


def section_at(values: Any, where: str) -> dict[str, Any]:
    """Return the mapping at the dotted key ``where``, numbers of list entries included; empty where there is none."""
    for key in where.split("."):
        if isinstance(values, list):
            values = values[int(key)] if key.isdecimal() and int(key) < len(values) else None
        else:
            values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, dict) else {}


def value_at(values: Any, where: str) -> Any:
    """Return the value at the dotted key ``where``, numbers of list entries included."""
    for key in where.split("."):
        values = values[int(key)] if isinstance(values, list) else values[key]
    return values


def set_at(values: Any, where: str, value: Any) -> None:
    """Set the value at the dotted key ``where``, in place; a mapping that is missing on the way is made."""
    *path, last = where.split(".")
    for key in path:
        if isinstance(values, list):
            values = values[int(key)]
        else:
            values[key] = {} if values.get(key) is None else values[key]
            values = values[key]
    values[int(last) if isinstance(values, list) else last] = value


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON with ``change`` applied to each text in it, keys excepted."""
    if isinstance(value, dict):
        return {key: with_texts(part, change) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(part, change) for part in value]
    return change(value) if isinstance(value, str) else value
