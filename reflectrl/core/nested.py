"""Conversion of nested mappings, such as recipes, to one mapping with dotted keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def dotted(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted keys, ``{"rlft.gamma": 0.9}``; lists are kept as values."""
    if not isinstance(value, Mapping):
        return {path: value}
    return {
        key: leaf for name, part in value.items() for key, leaf in dotted(part, f"{path}.{name}".strip(".")).items()
    }
