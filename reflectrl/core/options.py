"""Types of an environment's options, which the constructor of its class annotates."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError


def wrong_type(cls: type, option: str, value: object) -> str | None:
    """Return what is expected in place of ``value``; ``None`` if it has the type that ``cls`` annotates, or none.

    A value has a type if a file that holds the value could be read as the type: a list may stand for a tuple.
    """
    kind = _types(cls).get(option)
    if kind is None:
        return None
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = None
    try:
        kind.validate_python(value, strict=True) if text is None else kind.validate_json(text, strict=True)
    except ValidationError as error:
        wrong = [fault["msg"].removeprefix("Input should be ") for fault in error.errors(include_url=False)]
        return " or ".join(dict.fromkeys(wrong))
    return None


@cache
def _types(cls: Any) -> dict[str, TypeAdapter[Any]]:
    """Return the types of a constructor's parameters, by name; none if one of them cannot be checked."""
    settings = ConfigDict(arbitrary_types_allowed=True)
    try:
        hints = {name: hint for name, hint in get_type_hints(cls.__init__).items() if name != "return"}
        return {name: TypeAdapter(hint, config=settings) for name, hint in hints.items()}
    except (NameError, TypeError, PydanticUserError):
        return {}
