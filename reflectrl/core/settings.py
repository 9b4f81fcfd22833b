"""Settings: records that pydantic checks whenever they are constructed, from a recipe's YAML or in Python.

This module is not part of ``import reflectrl.core``, which loads no pydantic.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import json
import reprlib
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args, get_type_hints

import pydantic.dataclasses
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from reflectrl.core.addresses import public_address, public_source, variable_name
from reflectrl.core.errors import InvalidInput, nearest

T = TypeVar("T")

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[float, Field(gt=0.0)]
NonNegative = Annotated[float, Field(ge=0.0)]
Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Address = Annotated[str, AfterValidator(public_address)]
Source = Annotated[str, AfterValidator(public_source)]
VariableName = Annotated[str, AfterValidator(variable_name)]

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


class Section(BaseModel):
    """Base class of the recipe sections that only the pipeline reads: frozen, without unknown keys or NaN."""

    model_config = ConfigDict(frozen=True, **_STRICT)


@dataclass_transform(frozen_default=True, field_specifiers=(field, Field))
def settings(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Return a decorator for a dataclass with checked values: a package's settings that are also a recipe section.

    The constructor of the class raises one ``InvalidInput`` that lists all wrong values.
    """

    def decorate(plain: type[T]) -> type[T]:
        made = pydantic.dataclasses.dataclass(config=_STRICT, frozen=True, kw_only=kw_only)(plain)
        checked = made.__init__

        @functools.wraps(checked)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            names = [each.name for each in fields(self) if each.init and not each.kw_only]
            values = {**dict(zip(names, args, strict=False)), **kwargs}
            try:
                checked(self, *args, **kwargs)
            except ValidationError as error:
                wrong = mistakes(error, made, values)
            else:
                return
            raise refusal(made.__name__, wrong)  # not ``from error``, which shows addresses with their credentials

        made.__init__ = init  # type: ignore[method-assign]  # pydantic builds nested sections without calling it
        return cast(type[T], made)

    return decorate


def settings_fields(section: type) -> dict[str, FieldInfo]:
    """Return the fields of a recipe section, with type and default."""
    return cast(dict[str, FieldInfo], getattr(section, "__pydantic_fields__"))  # noqa: B009 - two unrelated bases


def descriptions(section: type) -> dict[str, str]:
    """Return what is said about the fields of a recipe section: their docstrings in its source and in its bases'."""
    found = {name: field.description for name, field in settings_fields(section).items() if field.description}
    if found:  # a section that was made of others has no source
        return found
    for each in reversed([base for base in section.__mro__ if is_dataclass(base) or issubclass(base, Section)]):
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        for before, after in itertools.pairwise(getattr(tree, "body", ())):
            if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr):
                found[ast.unparse(before.target)] = inspect.cleandoc(ast.literal_eval(after.value))
    return {name: said for name, said in found.items() if name in settings_fields(section)}  # no class variables


def misplaced_booleans(section: type, values: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each boolean, such as YAML's ``yes``, in place of a number; pydantic takes it for 0 or 1."""
    known = settings_fields(section)
    for key, value in values.items() if isinstance(values, Mapping) else ():
        if key not in known:
            continue
        kinds = _kinds(known[key].annotation)
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            yield f"{where}{key}: given {value}; expected a number."
        listed = enumerate(value) if isinstance(value, list) else [("", value)]
        for place, each in listed:
            if (inner := section_of(known[key].annotation, each)) is not None:
                yield from misplaced_booleans(inner, each, f"{where}{key}.{place}{'.' * (place != '')}")


def _kinds(annotation: Any) -> set[Any]:
    """Return the parts of a field's type, ``{int, None}`` for ``Annotated[int, Ge(0)] | None``."""
    parts = get_args(annotation)
    return set().union(*map(_kinds, parts)) if parts else {annotation} if inspect.isclass(annotation) else set()


def default_kinds(section: type, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key of each section below that can be of several kinds, and the kind of one that names none."""
    for name, known in settings_fields(section).items():
        kinds = [*sections_of(known.annotation)]
        if len(kinds) > 1:
            yield f"{where}{name}", _kind(kinds[0])
        for each in kinds:
            yield from default_kinds(each, f"{where}{name}.")


def sections_of(annotation: Any) -> Iterator[type]:
    """Yield the recipe sections inside a field's type: ``Lesson`` for ``list[Lesson] | None``."""
    if inspect.isclass(annotation) and hasattr(annotation, "__pydantic_fields__"):
        yield annotation
    for part in get_args(annotation):
        yield from sections_of(part)


def section_of(annotation: Any, values: Any = None) -> type | None:
    """Return the recipe section inside a field's type, of several the one that ``values["kind"]`` names, if any."""
    found = [*sections_of(annotation)]
    kind = values.get("kind") if isinstance(values, Mapping) else None
    return next((each for each in found if kind and kind == _kind(each)), found[0] if found else None)


def _kind(section: type) -> Any:
    field = settings_fields(section).get("kind")
    return None if field is None else field.default


def refusal(what: str, problems: Sequence[str]) -> InvalidInput:
    """Return the error that lists every mistake in ``what``, one per line."""
    count = "a mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    return InvalidInput("\n  ".join([f"{what} has {count}:", *problems]))


def checked(kind: type[T], what: str, **values: Any) -> T:
    """Return a ``kind`` with these values; raises ``InvalidInput`` with every mistake in them."""
    try:
        return kind(**values)
    except ValidationError as error:
        raise refusal(what, mistakes(error, kind, values)) from None


def mistakes(error: ValidationError, kind: type, values: Mapping[str, Any]) -> list[str]:
    """Return one line for each mistake in ``values`` of a ``kind``: the key, what was given, what is expected."""
    lines: dict[str, dict[str, None]] = {}  # a set that keeps its order
    for found in error.errors(include_url=False):
        keys = _keys(found["type"], found["loc"], values)
        start, expected = _sentence(found["type"], found["msg"], keys, kind, values)
        lines.setdefault(f"{'.'.join(map(str, keys))}: {start}".removeprefix(": "), {})[expected] = None
    return [f"{start}{' or '.join(expected).removesuffix('.')}." for start, expected in lines.items()]


def _keys(fault: str, loc: Sequence[int | str], values: Any) -> list[int | str]:
    """Return ``loc`` without the tags (``str``, ``list[str]``, a kind) of union members, which are not keys."""
    keys: list[int | str] = []
    named = False
    for at, part in enumerate(loc):
        if isinstance(values, Mapping) and part == values.get("kind") and not named:
            named = True
            continue
        named = False
        listed = isinstance(values, Sequence) and isinstance(part, int)
        if listed or (isinstance(values, Mapping) and part in values):
            values = values[part]
        elif fault != "missing" or at < len(loc) - 1:
            break
        keys.append(part)
    return keys


def _sentence(fault: str, message: str, keys: Sequence[int | str], kind: type, values: Any) -> tuple[str, str]:
    """Return the start of a line and what is expected; mistakes that differ only in the latter share a line."""
    if fault == "value_error":
        return "", message.removeprefix("Value error, ")
    if fault == "missing":
        return "nothing was given; expected ", "a value"
    given = functools.reduce(lambda value, key: value[key], keys, values)
    shown = f"given {'null' if given is None else reprlib.repr(given)}; "
    if fault in ("union_tag_not_found", "union_tag_invalid", "model_attributes_type"):
        union = settings_fields(_section_at(kind, keys[:-1], values))[str(keys[-1])]
        known = [str(_kind(each)) for each in sections_of(union.annotation)]
        if not isinstance(given, Mapping) or given.get("kind") is None:
            return f"{shown}expected ", f"a mapping with a kind: {', '.join(known[:-1])} or {known[-1]}"
        return f"unknown kind, given {reprlib.repr(given['kind'])}; ", nearest(str(given["kind"]), known)
    if fault in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"unknown key, {shown}", nearest(str(keys[-1]), settings_fields(_section_at(kind, keys[:-1], values)))
    if fault in ("model_type", "dataclass_type"):
        names = settings_fields(_section_at(kind, keys, values))
        return f"{shown}expected a mapping with keys among ", ", ".join(names)
    return f"{shown}expected ", message.removeprefix("Input should be ")


def _section_at(section: type, keys: Sequence[int | str], values: Any) -> type:
    for key in keys:
        values = values[key]
        if isinstance(key, str):
            section = section_of(settings_fields(section)[key].annotation, values) or section
    return section


# ---- options of an environment, whose types the constructor of its class annotates ----


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
