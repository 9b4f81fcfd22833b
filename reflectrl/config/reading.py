"""Recipes from YAML: find them, resolve ``extends``, apply overrides, check them, and report all mistakes at once."""

from __future__ import annotations

import copy
import itertools
import re
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from reflectrl.config.env_check import unused_settings
from reflectrl.config.schema import Recipe, in_full, note_stated, trackers_in_full
from reflectrl.config.spending import endpoints_of, price_mistakes
from reflectrl.config.training import RLFTSettings
from reflectrl.config.trust import check_trust, for_play
from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput, nearest
from reflectrl.core.addresses import section_at
from reflectrl.core.files import read_text
from reflectrl.core.run_files import AGENT
from reflectrl.core.settings import default_kinds, misplaced_booleans, mistakes, refusal

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_KINDS = dict(default_kinds(Recipe))
"""Dotted keys of the sections that can be of several kinds, each with the kind of one that names none."""


@dataclass
class _Source:
    """A recipe before validation: its values, and the problems found while reading it."""

    values: dict[str, Any]
    problems: list[str] = field(default_factory=list)


def recipe_names() -> list[str]:
    """Return the names of the shipped recipes and their arms: ``["dangerous_taxi/nano", ...]``."""
    return sorted(_shipped())


@cache
def _shipped() -> Mapping[str, tuple[str, str | None]]:
    """Return the file of each shipped recipe, and its arm in it, by the recipe's name."""

    def walk(folder: Traversable, prefix: str) -> Iterator[str]:
        for entry in folder.iterdir():
            if entry.is_dir() and entry.name != "accelerate":  # configurations of launches
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                yield prefix + entry.name.removesuffix(".yaml")

    found: dict[str, tuple[str, str | None]] = {}
    for name in walk(files("reflectrl.recipes"), ""):
        _, start, arms = _text(name).partition("\narms:\n")
        found |= {name: (name, None)}
        found |= {f"{name}_{arm}": (name, arm) for arm in re.findall(r"^  (\w+):", arms, re.MULTILINE) if start}
    return found


@cache
def _text(name: str) -> str:
    return files("reflectrl.recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def recipe_text(name: str) -> str:
    """Return the YAML of a shipped recipe, without its arms; that of an arm extends the recipe.

    Raises:
        InvalidInput: an unknown name.
    """
    text = _own_text(name)
    if re.search("^name: ", text, re.MULTILINE):
        return text
    return re.sub("^(extends: .*)$", rf"\1\nname: {load_recipe(name).name}", text, count=1, flags=re.MULTILINE)


def recipe_description(name: str) -> str:
    """Return a shipped recipe's description, its own or that of what it extends, without loading the recipe.

    Raises:
        InvalidInput: an unknown name.

    """
    own, parent = (re.search(f"^{key}: (.*)$", _own_text(name), re.MULTILINE) for key in ("description", "extends"))
    return str(yaml.safe_load(own[1])) if own else recipe_description(parent[1]) if parent else ""


def _own_text(name: str) -> str:
    """Return what a shipped recipe, or an arm of one, states itself."""
    if name not in _shipped():
        raise InvalidInput(f"recipe {name!r} is unknown; {nearest(name, recipe_names())}")
    file, arm = _shipped()[name]
    own, _, arms = _text(file).partition("\narms:\n")
    if arm is None:
        return f"{own.rstrip()}\n"
    [*_, below] = re.split(rf"^  {arm}:.*\n", arms, maxsplit=1, flags=re.MULTILINE)
    lines = [line[4:] for line in itertools.takewhile(lambda line: line.startswith("    "), below.splitlines())]
    head = [*itertools.takewhile(lambda line: line.startswith("#"), lines)]
    body = lines[len(head) :]
    within = body.pop(0).removeprefix("extends: ") if body and body[0].startswith("extends: ") else None
    parent = file if within is None else f"{file}_{within}" if f"{file}_{within}" in _shipped() else within
    return "\n".join([*head, f"# reflectrl run --recipe {name}", f"extends: {parent}", *body, ""])


def arm_names(recipe: str | Path) -> list[str]:
    """Return the names of a recipe's arms, in the order of its file; ``recipe`` as in ``load_recipe``.

    Raises:
        InvalidInput: no such recipe.
    """
    identity, text, _, _ = _located(str(recipe), Path(), ())
    return [*_arms(_values(identity, text))]


def load_recipe(
    recipe: str | Path | Mapping[str, object] | Recipe,
    overrides: Sequence[str] = (),
    *,
    arm: str | None = None,
) -> Recipe:
    """Read a recipe, apply ``key.sub=value`` overrides, and check it against the schema.

    Args:
        recipe: name of a shipped recipe, path of a YAML file, a mapping with the keys of one, or a ``Recipe``.
        overrides: changes to the recipe, as ``key.sub=value``.
        arm: one of the variants that a recipe file lists as ``arms``; absent: the recipe itself.

    Raises:
        InvalidInput: the recipe has mistakes; the message lists all of them, one per line.
    """
    if isinstance(recipe, str | Path):
        name, source = str(recipe), _read(str(recipe), Path(), (), arm)
    elif arm is not None:
        raise InvalidInput(f"arm={arm!r} was given with a recipe that is not a file; expected a name or a path.")
    else:
        values = recipe.model_dump() if isinstance(recipe, Recipe) else copy.deepcopy(dict(recipe))
        name = str(values.get("name", "without a name"))
        source = _extended(_Source(values), Path(), (name,))
    before = copy.deepcopy(source.values)
    for override in sorted(overrides, key=lambda each: not each.startswith("env.name=")):  # its options come after it
        _override(source, override)
    source.problems += price_mistakes(before, source.values, lambda where: _sets(overrides, where))
    note_stated(source.values, before, [override.partition("=")[0] for override in overrides])
    checked = _checked(name, source)
    if unused := [*unused_settings(checked)]:
        raise refusal(f"recipe {name!r}", unused)
    return checked


def load_saved_recipe(path: Path, *, hosts: Collection[str] = (), given: Collection[str] | None = ()) -> Recipe:
    """Load the ``recipe.yaml`` of a run folder or of an exported agent, of which only what its players need is read.

    Args:
        path: the file.
        hosts: servers that the players of a folder from elsewhere may send states to.
        given: options of the environment that the user has given; ``None`` if no environment is going to be made.

    Raises:
        InvalidInput: there is none, the recipe has mistakes (the message lists all of them, one per line) or extends a
            file, or it came from elsewhere and asks for more than the user has allowed.
    """
    if not path.is_file():
        raise InvalidInput(f"{path.parent} is not a run folder, as it has no {path.name}; give a recipe to begin one.")
    identity, text = str(path.resolve()), read_text(path, "a recipe, a YAML file in UTF-8")
    values = _values(identity, text)
    if (parent := values.values.get("extends")) is not None and parent not in recipe_names():
        raise InvalidInput(
            f"recipe {identity!r} extends {reprlib.repr(parent)}; expected the recipe of a folder to be whole, as the "
            "stages write it, or to extend a shipped one."
        )
    source = _extended(values, Path(), (identity,))
    recipe = _checked(str(path), source)
    if (path.parent / AGENT).exists():
        recipe = for_play(recipe)
    check_trust(path.parent, recipe, text, hosts=hosts, given=given)
    return recipe


def _checked(name_or_path: str, source: _Source) -> Recipe:
    _name_kinds(source.values)  # in sections that overrides have begun
    problems = [*source.problems, *misplaced_booleans(Recipe, source.values)]
    try:
        recipe = Recipe.model_validate(source.values)
    except ValidationError as error:
        problems += mistakes(error, Recipe, source.values)
    if problems:
        raise refusal(f"recipe {name_or_path!r}", problems)
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """Return the complete recipe, defaults included, as YAML in the schema's order; it loads back equal."""
    values = recipe.model_dump()
    values["env"] = {"name": recipe.env.name, **values["env"]}  # puts the name before the inherited fields
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _read(given: str, folder: Path, above: tuple[str, ...], arm: str | None = None) -> _Source:
    """Return the values of a recipe or of an arm of it, merged over those that it extends.

    ``above`` are the recipes that extend it.
    """
    identity, text, place, named = _located(given, folder, above)
    if named is not None and arm is not None:
        raise InvalidInput(
            f"--arm {arm} was given, but {given!r} is an arm already; name its file, {_shipped()[given][0]}."
        )
    arm = named or arm
    shown = identity if arm is None else f"{identity}, arm {arm}"
    if shown in above:
        circle = " -> ".join([*above[above.index(shown) :], shown])
        raise InvalidInput(f"recipe {shown!r} extends itself: {circle}; remove one extends.")
    source = _values(identity, text)
    arms = _arms(source)
    if arm is None:
        return _extended(source, place, (*above, shown))
    if arm not in arms:
        raise InvalidInput(f"recipe {given!r} has no arm {arm!r}; {nearest(arm, arms)}")
    change = copy.deepcopy(arms[arm])
    within = change.pop("extends", None)
    later = {key: change.pop(key) for key in [*change] if "." in key}
    change.setdefault("name", f"{source.values.get('name')}_{arm}")
    _write_in_full(change)
    if within is None or within in arms:
        base = _read(given if named is None else _shipped()[given][0], folder, (*above, shown), within)
    else:
        base = _read(str(within), place, (*above, shown))
    merged = _over(base, _Source(change, source.problems))
    merged.problems += [
        problem for key, value in later.items() if (problem := _set(merged.values, key.split("."), value))
    ]
    _write_in_full(merged.values)
    return merged


def _located(given: str, folder: Path, above: tuple[str, ...]) -> tuple[str, str, Path, str | None]:
    """Return the identity of a recipe file, its text, the folder of what it extends, and the arm that was named."""
    path = folder / given
    if given in _shipped():
        file, arm = _shipped()[given]
        return file, _text(file), Path(), arm
    if _is(path, Path.is_file):
        return str(path.resolve()), read_text(path, "a recipe, a YAML file in UTF-8"), path.parent, None
    what = f"{reprlib.repr(given)}, which {above[-1]!r} extends," if above else reprlib.repr(given)
    if (why := _missing_file(given, path)) is not None:
        raise InvalidInput(
            f"recipe {what} is not a file: {why}; correct the path, or name a shipped recipe, which "
            "`reflectrl recipes ls` lists."
        )
    raise InvalidInput(
        f"recipe {what} is neither a file nor shipped; {nearest(given, recipe_names())} "
        "`reflectrl recipes ls` lists all."
    )


def _values(identity: str, text: str) -> _Source:
    values, problems = read_yaml(text, f"recipe {identity!r}")
    if not isinstance(values, dict):
        raise InvalidInput(
            f"recipe {identity!r} holds {reprlib.repr(values)}; expected a mapping, e.g. a line 'name: my_run'."
        )
    return _Source(values, problems)


def _arms(source: _Source) -> dict[str, dict[str, Any]]:
    """Take the arms out of a recipe's values: changes by name, each a part of a recipe, or dotted keys."""
    arms = source.values.pop("arms", None)
    if arms is None:
        return {}
    wrong = not isinstance(arms, dict) or not all(isinstance(each, dict) for each in arms.values())
    if wrong or not all(re.fullmatch(r"\w+", name) for name in arms):
        source.problems.append(
            f"arms: given {reprlib.repr(arms)}; expected a mapping of names to changes, such as "
            "no_reflection: {players.reflector.player: none}."
        )
        return {}
    return dict(arms)


def _extended(source: _Source, folder: Path, above: tuple[str, ...]) -> _Source:
    """Return the values of ``source``, which is the last of ``above``, merged over those that it extends."""
    _write_in_full(source.values)
    parent = source.values.pop("extends", None)
    if parent is None:
        _name_kinds(source.values)
        return source
    if not isinstance(parent, str):
        source.problems.append(f"extends: given {parent!r}; expected the name or path of one recipe.")
        return source
    return _over(_read(parent, folder, above), source)


def _over(base: _Source, source: _Source) -> _Source:
    _leave_environment(base.values, source.values)
    stated = {f"{where}.price" for where, endpoint in endpoints_of(source.values).values() if "price" in endpoint}
    for where in stated:  # as a whole: a part of another model's price is none of this one's
        section_at(base.values, where.removesuffix(".price")).pop("price", None)
    merged = _merge(base.values, source.values)
    _name_kinds(merged)
    problems = price_mistakes(base.values, merged, stated.__contains__)
    return _Source(merged, base.problems + source.problems + problems)


def _leave_environment(base: dict[str, Any], change: Mapping[str, Any]) -> None:
    """Remove options from ``base`` if ``change`` is about another environment, which has other options."""
    name = section_at(change, "env").get("name")
    if name is None or name == section_at(base, "env").get("name"):
        return
    for section, key in ((section_at(base, "env"), "options"), (section_at(base, "eval"), "env")):
        if isinstance(section, dict):
            section.pop(key, None)
    lessons = section_at(base, "rlft").get("lessons")
    for lesson in lessons if isinstance(lessons, list) else ():
        if isinstance(lesson, dict):
            lesson.pop("env", None)


def _missing_file(given: str, path: Path) -> str | None:
    """Return why there is no recipe at ``path``, if ``given`` can only mean a path; else ``None``."""
    if not given.endswith((".yaml", ".yml")) and not given.startswith(("/", ".", "~")):
        return None
    if _is(path, Path.is_dir):
        return "it is a folder"
    folder = path.absolute().parent
    return f"{folder} has no such file" if _is(folder, Path.is_dir) else f"there is no folder {folder}"


def _is(path: Path, kind: Callable[[Path], bool]) -> bool:
    try:
        return kind(path)
    except OSError:  # a name that is too long, a folder that may not be entered
        return False


def _name_kinds(values: dict[str, Any]) -> None:
    """Write the kind into each section that names none, in place, so that one of another kind can replace it."""
    for where, kind in _KINDS.items():
        if isinstance(section := section_at(values, where), dict):
            section.setdefault("kind", kind)


def _merge(base: Any, change: Any, where: str = "") -> Any:
    """Merge ``change`` into ``base``: mappings key by key; any other value, ``null`` included, replaces the old one.

    A section of another ``kind`` replaces the old one too, since it has other settings.
    """
    if not (isinstance(base, dict) and isinstance(change, dict)) or _is_other_kind(where, base, change.get("kind")):
        return change
    return base | {key: _merge(base.get(key), value, f"{where}.{key}".strip(".")) for key, value in change.items()}


def _is_other_kind(where: str, section: Mapping[str, Any], kind: Any) -> bool:
    return where in _KINDS and kind is not None and section.get("kind") not in (None, kind)


def _override(source: _Source, override: str) -> None:
    path, equals, text = override.partition("=")
    said = f"override {reprlib.repr(override)}"
    keys = path.split(".")
    if not (equals and all(keys)):
        source.problems.append(f"{said}: expected key.sub=value, e.g. seed=1.")
        return
    try:
        value, problems = read_yaml(text, f"{said}: {reprlib.repr(text)}")
    except InvalidInput as error:
        source.problems.append(str(error))
        return
    source.problems += [f"{said}: {problem}" for problem in problems]
    if path == "env.name":
        _leave_environment(source.values, {"env": {"name": value}})
    if path.startswith("rlft.lessons.") and isinstance(section := source.values.get("rlft") or {}, dict):
        # else there is no lesson to change
        lessons = [asdict(lesson) for lesson in RLFTSettings().lessons]
        source.values["rlft"] = {"lessons": lessons, **section}
    problem = _set(source.values, keys, value)
    if problem:
        source.problems.append(f"{said}: {problem}")
    _write_in_full(source.values)


def _write_in_full(values: dict[str, Any]) -> None:
    """Write what stands for a section, such as a number, as that section, which others are merged with; in place."""
    if "report_to" in values:
        values["report_to"] = trackers_in_full(values["report_to"])
    prompt = section_at(values, "prompt")
    if isinstance(prompt, dict) and "history" in prompt:
        prompt["history"] = in_full(prompt["history"])


def _sets(overrides: Sequence[str], where: str) -> bool:
    """Return whether an override changes the key ``where``, a key below it, or a section that contains it."""
    keys = [f"{override.partition('=')[0]}." for override in overrides]
    return any(key.startswith(f"{where}.") or f"{where}.".startswith(key) for key in keys)


def _set(values: dict[str, Any], keys: list[str], value: Any) -> str | None:
    """Set ``value`` at ``keys``; return a description of what prevents it, or ``None``."""
    here: Any = values
    for depth, key in enumerate(keys):
        where = ".".join(keys[:depth])
        place: Any = key
        if isinstance(here, list):
            if key not in map(str, range(len(here))):
                entries = f"a number from 0 to {len(here) - 1}, not {key!r}" if here else "a whole list"
                return f"{where} has {len(here)} entries; expected {entries}."
            place = int(key)
        elif not isinstance(here, dict):
            return f"{where} is {reprlib.repr(here)}, which has no part {key!r}."
        if depth == len(keys) - 1:
            if place == "kind" and _is_other_kind(where, here, value):
                here.clear()
            here[place] = value
        elif isinstance(here, dict) and here.get(key) is None:
            here[key] = {}
        here = here[place]
    return None
