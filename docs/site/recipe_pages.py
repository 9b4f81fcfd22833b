"""The reference of all recipe keys, from the schema, and the list of the shipped recipes, from their files."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from outcomes import Outcome, outcomes
from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from reflectrl.config import load_recipe, recipe_names, recipe_text
from reflectrl.config.schema import Recipe
from reflectrl.core.settings import descriptions, settings_fields

KEYS = """# Recipe keys

Every key that a recipe may have, made from the schema that checks it (`reflectrl/config/`). On the command
line a key is `section.key=value`; an entry of a list is a number, as in `rlft.lessons.0.iterations=20`, here written N.
A key that is not listed is refused, with the nearest valid name. "In" names the [shipped recipes](shipped-recipes.md)
whose own file sets the key; recipes that extend those take it over.
"""
SHIPPED = """# Shipped recipes

`reflectrl recipes show NAME` prints a recipe with everything filled in, `reflectrl recipes cp NAME mine.yaml` copies
it, and `reflectrl run --recipe NAME` or `--recipe mine.yaml` runs it. A recipe that extends another one says only what
differs. Success is the published mean in per cent, minutes those of a core for SFT and RLFT; where a cell is empty,
nothing is published.
"""
START = "recipe-keys.md"
PLAIN = {int: "whole number", float: "number", str: "text", bool: "true or false", dict: "mapping", Any: "any value"}


def reference_pages() -> dict[str, str]:
    """The Markdown of each page by its path: the recipe's own keys, and those below each of its sections."""
    users, pages, seen = _users(), {START: [KEYS]}, set[str]()
    for section, paths in _sections().items():
        kind = settings_fields(section).get("kind")
        named = ", ".join(f"`{path}`" for path in paths if path) + (f" of kind `{kind.default}`" if kind else "")
        lines = pages.setdefault(_page(paths), [f"# Keys of `{paths[0]}`\n"])
        lines += [f"## {named or 'The recipe'} {{ #{_anchor(section)} }}\n", f"{_words(section.__doc__ or '')}\n"]
        said = descriptions(section)
        for name, field in settings_fields(section).items():
            names = [f"{path}.{name}" if path else name for path in paths]
            ids = {each: f"{each}-{kind.default}" if kind and each in seen else each for each in names}
            seen |= {*names}
            lines += _entry(ids, field, said[name], users)
    return {path: "\n".join(lines) for path, lines in pages.items()}


def shipped_page() -> str:
    """The Markdown."""
    lines, folder, published = [SHIPPED], "", outcomes()
    for name in recipe_names():
        if name.partition("/")[0] != folder:
            folder = name.partition("/")[0]
            lines += [
                f"\n## `{folder}` {{#{folder}}}\n",
                "| recipe | extends | what it shows | success | minutes |",
                f"|{'---|' * 5}",
            ]
        above = yaml.safe_load(recipe_text(name)).get("extends")
        described = load_recipe(name).description.replace("|", "\\|")
        reached = published.get(name, Outcome("", ""))
        parent = f"`{above}`" if above else ""
        lines.append(f"| `{name}` | {parent} | {described} | {reached.success} | {reached.minutes} |")
    return "\n".join(lines) + "\n"


def _page(paths: Sequence[str]) -> str:
    """The page of a section that stands at these places."""
    top = paths[0].partition(".")[0]
    return f"keys-{top}.md" if top else START


@cache
def _sections() -> dict[type, list[str]]:
    """Every section once, with the places where it stands: an endpoint, for example, in three of them."""
    found: dict[type, list[str]] = {}

    def walk(section: type, path: str) -> None:
        found.setdefault(section, []).append(path)
        for name, field in settings_fields(section).items():
            for below, many in _held(field.annotation):
                inner = f"{path}.{name}" if path else name
                walk(below, f"{inner}.N" if many else inner)

    walk(Recipe, "")
    return found


def _held(annotation: Any, many: bool = False) -> Iterator[tuple[type, bool]]:
    """The sections in a type, and whether it is a list of them."""
    if is_section(annotation):
        yield annotation, many
    for inner in get_args(annotation) if get_origin(annotation) is not Literal else ():
        yield from _held(inner, many or get_origin(annotation) is list)


def _entry(keys: Mapping[str, str], field: FieldInfo, said: str, users: Mapping[str, list[str]]) -> Iterator[str]:
    """A key, which may stand in several places, as an entry of a definition list; ``keys`` have their anchors."""
    yield from (f"`{key}`{{ #{anchor} }}" for key, anchor in keys.items())
    yield f":   {_words(said)}"
    yield ""
    yield f"    {_type(field.annotation, field.metadata)}{_default(field)}"
    yield "    { .values }"
    if not any(_held(field.annotation)):
        set_by = dict.fromkeys(name for key in keys for name in users.get(key, []))
        yield ""
        yield f"    In {_grouped(set_by)}."
        yield "    { .users }"
    yield ""


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return ", required"
    if is_section(type(value)):
        return ""
    if isinstance(value, list | tuple):
        value = [_set(each) if is_section(type(each)) else each for each in value]
    text = yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()
    return f", default `{text}`"


def is_section(annotation: Any) -> bool:
    """Return whether a type is a part of the recipe with keys of its own."""
    return isinstance(annotation, type) and hasattr(annotation, "__pydantic_fields__")


def _set(value: Any) -> dict[str, Any]:
    """The keys of a section that differ from their defaults."""
    known = settings_fields(type(value))
    defaults = {name: info.get_default(call_default_factory=True) for name, info in known.items()}
    return {name: given for name, given in vars(value).items() if given != defaults[name]}


def _type(annotation: Any, limits: Any = ()) -> str:
    """A type and its limits in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(inner[0], [limit for each in inner[1:] for limit in getattr(each, "metadata", [each])])
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join("`null`" if each is types.NoneType else _type(each, limits) for each in inner)
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}{_limits(limits)}"
    if is_section(annotation):
        kind = settings_fields(annotation).get("kind")
        where = f"{_page(_sections()[annotation])}#{_anchor(annotation)}"
        return f"[{f'kind `{kind.default}`' if kind else 'section'}]({where})"
    return PLAIN[origin or annotation] + _limits(limits)


def _limits(limits: Any) -> str:
    known = {
        Ge: ("at least", "ge"),
        Gt: ("above", "gt"),
        Le: ("at most", "le"),
        Lt: ("below", "lt"),
        MinLen: ("length at least", "min_length"),
    }
    patterns = [limit.pattern for limit in limits if hasattr(limit, "pattern")]
    bounds = [
        limit
        for limit in limits
        if not (isinstance(limit, AfterValidator | BeforeValidator) or hasattr(limit, "pattern"))
    ]
    said = [f"{known[type(limit)][0]} {getattr(limit, known[type(limit)][1]):g}" for limit in bounds]
    said += [f"as `{pattern}`" for pattern in patterns]
    return f" ({' and '.join(said)})" if said else ""


def _users() -> dict[str, list[str]]:
    """Key to the recipes whose own file sets it."""
    users: dict[str, list[str]] = defaultdict(list)

    def walk(value: Any, path: str, name: str) -> None:
        if path and name not in users[path]:
            users[path].append(name)
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(inner, f"{path}.{key}" if path else str(key), name)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, f"{path}.N", name)

    for name in recipe_names():
        walk(yaml.safe_load(recipe_text(name)), "", name)
    return users


def _grouped(names: Mapping[str, None]) -> str:
    """``folder: a, b; other: c``, the recipes of a folder side by side."""
    if len(names) == len(recipe_names()):
        return "every shipped recipe"
    folders: dict[str, list[str]] = defaultdict(list)
    for name in names:
        folder, _, rest = name.partition("/")
        folders[folder].append(rest)
    said = [f"{folder}: {', '.join(sorted(rest))}" for folder, rest in sorted(folders.items())]
    return "; ".join(said) or "no shipped recipe"


def _anchor(section: type) -> str:
    """The id of a section's heading."""
    return f"section-{section.__name__.removesuffix('Section').lower()}"


def _words(docstring: str) -> str:
    """A docstring as one paragraph of Markdown."""
    return " ".join(docstring.split())
