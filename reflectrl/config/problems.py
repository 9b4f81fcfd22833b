"""What pydantic finds wrong with a recipe, as one line a mistake: where, what was given, what is expected."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from reflectrl.config.schema import Recipe
from reflectrl.core import nearest


def recipe_or_problems(values: dict[str, Any]) -> tuple[Recipe | None, list[str]]:
    """The recipe that ``values`` make, or ``None`` and every mistake in them."""
    try:
        return Recipe.model_validate(values), []
    except ValidationError as error:
        lines: dict[str, dict[str, None]] = {}  # a set that keeps its order
        for mistake in error.errors(include_url=False):
            keys = _keys(mistake["type"], mistake["loc"], values)
            start, expected = _sentence(mistake["type"], mistake["msg"], keys, values)
            lines.setdefault(f"{'.'.join(map(str, keys))}: {start}".removeprefix(": "), {})[expected] = None
        return None, [f"{start}{' or '.join(expected).removesuffix('.')}." for start, expected in lines.items()]


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The recipe section inside a field's type: ``list[StageSection] | None`` has ``StageSection``."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := section_of(part))), None)


def _keys(kind: str, loc: Sequence[int | str], values: Any) -> list[int | str]:
    """``loc`` up to the tags (``str``, ``list[str]``) that pydantic adds for members of a union: no recipe has them."""
    keys: list[int | str] = []
    for part in loc:
        listed = isinstance(values, list) and isinstance(part, int)
        if listed or (isinstance(values, dict) and part in values):
            values = values[part]
        elif kind != "missing" or len(keys) < len(loc) - 1:
            break
        keys.append(part)
    return keys


def _sentence(kind: str, message: str, keys: Sequence[int | str], values: Any) -> tuple[str, str]:
    """What was given, and what was expected: mistakes that differ in the latter only share a line."""
    if kind == "value_error":
        return "", message.removeprefix("Value error, ")
    if kind == "missing":
        return "nothing was given; expected ", "a value"
    given = functools.reduce(lambda value, key: value[key], keys, values)
    shown = f"given {'null' if given is None else reprlib.repr(given)}; "
    if kind == "extra_forbidden":
        return f"unknown key, {shown}", nearest(str(keys[-1]), _section_at(keys[:-1]).model_fields)
    if kind == "model_type":
        return f"{shown}expected a mapping with keys among ", ", ".join(_section_at(keys).model_fields)
    return f"{shown}expected ", message.removeprefix("Input should be ")


def _section_at(keys: Sequence[int | str]) -> type[BaseModel]:
    section: type[BaseModel] = Recipe
    for key in keys:
        if isinstance(key, str):
            section = section_of(section.model_fields[key].annotation) or section
    return section
