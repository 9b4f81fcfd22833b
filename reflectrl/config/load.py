"""Recipes from YAML: find them, resolve ``extends``, apply overrides, check them, and report all mistakes at once."""

from __future__ import annotations

import copy
import inspect
import reprlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from reflectrl.config.budget import note_stated
from reflectrl.config.endpoint import endpoints_of, price_mistakes
from reflectrl.config.rlft import RLFTSettings, Stage
from reflectrl.config.schema import Recipe, in_full
from reflectrl.config.trust import check_trust, for_play
from reflectrl.config.unused import unused_settings
from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput, NatLangEnv, make_env, nearest
from reflectrl.core.files import read_text
from reflectrl.core.layout import AGENT, DATASET
from reflectrl.core.nested import section_at
from reflectrl.core.registry import env_class
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
    """Return the names of the shipped recipes: ``["dangerous_taxi/nano", ...]``."""

    def walk(folder: Traversable, prefix: str) -> Iterator[str]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                yield prefix + entry.name.removesuffix(".yaml")

    return sorted(walk(files("reflectrl.recipes"), ""))


def recipe_text(name: str) -> str:
    """Return the YAML of a shipped recipe.

    Raises:
        InvalidInput: an unknown name.

    """
    if name not in recipe_names():
        raise InvalidInput(f"recipe {name!r} is unknown; {nearest(name, recipe_names())}")
    return files("reflectrl.recipes").joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def load_recipe(recipe: str | Path | Mapping[str, object] | Recipe, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe, apply ``key.sub=value`` overrides, and check it against the schema.

    Args:
        recipe: name of a shipped recipe, path of a YAML file, a mapping with the keys of one, or a ``Recipe``.
        overrides: changes to the recipe, as ``key.sub=value``.

    Raises:
        InvalidInput: the recipe has mistakes; the message lists all of them, one per line.

    """
    if isinstance(recipe, str | Path):
        name, source = str(recipe), _read(str(recipe), Path(), ())
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
        raise InvalidInput(f"{path.parent} is no run folder, as it has no {path.name}; give a recipe to begin one.")
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


def check_recipe(recipe: Recipe) -> None:
    """Check that the environment of ``recipe`` exists and has its options and splits, by constructing each variant.

    Raises:
        InvalidInput: the recipe has mistakes; the message lists all of them, one per line.

    """
    name, base = recipe.env.name, recipe.env.options
    known = inspect.signature(env_class(name)).parameters
    stages = recipe.rlft.stages if recipe.rlft else []
    settings = {"env.options": base, "eval.env": recipe.eval.env}
    settings |= {f"rlft.stages.{number}.env": stage.env for number, stage in enumerate(stages)}
    # the tasks of a dataset section are made later, in gen-data
    chosen = {f"rlft.stages.{n}.env": stage for n, stage in enumerate(stages) if stage.tasks and not recipe.dataset}
    longest = None  # menu of env.options, for which the labels are made
    problems: dict[str, str] = {}  # by key or text: a mistake in env.options would be reported for every stage
    if recipe.dataset and DATASET not in known:
        problems[DATASET] = f"{DATASET}: environment {name!r} brings its own tasks; remove this section"
    for where, options in settings.items():
        for option in [option for option in options if option not in known]:
            given = f"unknown option, given {options[option]!r}"
            problems[f"{where}.{option}"] = f"{where}.{option}: {given}; {nearest(option, known)}"
        try:
            env = make_env(name, **{option: value for option, value in {**base, **options}.items() if option in known})
        except (TypeError, ValueError) as error:
            problems.setdefault(str(error), f"{where}: {error}")
        else:
            longest = env.max_actions if where == "env.options" else longest
            if longest is not None and env.max_actions > longest:
                problems[where] = (
                    f"{where}: its menus have up to {env.max_actions} actions, but those of env.options, for which the "
                    f"policy's labels are made, {longest}; set env.options to the longest menus."
                )
            for split in [split for split in recipe.eval.splits if split not in env.splits]:
                problems[f"split {split}"] = f"eval.split: unknown split {split!r}; {nearest(split, env.splits)}"
            if where == "eval.env" and not recipe.dataset:
                problems |= {why: why for why in _nothing_to_evaluate(recipe, env)}
            if (unseen := _unseen(recipe, env, {**base, **options})) is not None:
                problems.setdefault(unseen, f"{where}: {unseen}")
            if where in chosen and (missing := _without_tasks(chosen[where], env)) is not None:
                problems.setdefault(missing, f"{where.removesuffix('env')}tasks: {missing}")
    if problems:
        raise refusal(f"recipe {recipe.name!r}", list(problems.values()))


def _without_tasks(stage: Stage, env: NatLangEnv) -> str | None:
    """Return why a curriculum stage has no tasks; ``None`` if it has, or if the environment's data is not here."""
    try:
        env.split_tasks("train")
    except InvalidInput:
        return None
    try:
        stage.choose(env)
    except InvalidInput as error:
        return str(error)
    return None


def _nothing_to_evaluate(recipe: Recipe, env: NatLangEnv) -> Iterator[str]:
    """Yield why there is nothing to evaluate on, unless the environment's data is not here."""
    prefixes = tuple(recipe.eval.tasks)
    for split in (split for split in recipe.eval.splits if split in env.splits):
        try:
            ids = [task.id for task in env.any_tasks(split)]
        except InvalidInput:
            continue
        if not ids:
            yield f"eval.split: environment {recipe.env.name!r} has no tasks in split {split!r}; choose another split."
        elif prefixes and not any(each.startswith(prefixes) for each in ids):
            yield f"eval.tasks: no task of split {split!r} begins with one of them; {nearest(prefixes[0], ids)}"


def _unseen(recipe: Recipe, env: NatLangEnv, options: Mapping[str, object]) -> str | None:
    """Return why players of ``recipe`` cannot see a state of ``env``, made with ``options``; ``None`` if they can."""
    layout = recipe.layout(env.instructions)
    if not layout.images and options.get("observation") != "image":
        return None
    env.reset(seed=0)
    try:
        for role in layout.images:
            layout.prompt(role, env.observation, (), {})
    except InvalidInput as error:
        return str(error)
    blind = [role for role in recipe.reading_roles if role not in layout.images]
    if blind and not env.observation.text.strip():
        return (
            f"states are shown as pictures without text, but these players read text: {', '.join(blind)}; set the "
            "environment's option observation to both, or choose players that read pictures"
        )
    return None


def dump_recipe(recipe: Recipe) -> str:
    """Return the complete recipe, defaults included, as YAML in the schema's order; it loads back equal."""
    values = recipe.model_dump()
    values["env"] = {"name": recipe.env.name, **values["env"]}  # puts the name before the inherited fields
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)


def _read(given: str, folder: Path, above: tuple[str, ...]) -> _Source:
    """Return the values of a recipe, merged over those that it extends; ``above`` are the recipes that extend it."""
    path = folder / given
    if given in recipe_names():
        identity, text, folder = given, recipe_text(given), Path()
    elif _is(path, Path.is_file):
        identity, folder = str(path.resolve()), path.parent
        text = read_text(path, "a recipe, a YAML file in UTF-8")
    else:
        what = f"{reprlib.repr(given)}, which {above[-1]!r} extends," if above else reprlib.repr(given)
        if (why := _missing_file(given, path)) is not None:
            raise InvalidInput(
                f"recipe {what} is no file: {why}; correct the path, or name a shipped recipe, which "
                "`reflectrl recipes ls` lists."
            )
        raise InvalidInput(
            f"recipe {what} is neither a file nor shipped; {nearest(given, recipe_names())} "
            "`reflectrl recipes ls` lists all."
        )
    if identity in above:
        circle = " -> ".join([*above[above.index(identity) :], identity])
        raise InvalidInput(f"recipe {identity!r} extends itself: {circle}; remove one extends.")
    return _extended(_values(identity, text), folder, (*above, identity))


def _values(identity: str, text: str) -> _Source:
    """Return the values in the text of one recipe."""
    values, problems = read_yaml(text, f"recipe {identity!r}")
    if not isinstance(values, dict):
        raise InvalidInput(
            f"recipe {identity!r} holds {reprlib.repr(values)}; expected a mapping, e.g. a line 'name: my_run'."
        )
    return _Source(values, problems)


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
    base = _read(parent, folder, above)
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
    stages = section_at(base, "rlft").get("stages")
    for stage in stages if isinstance(stages, list) else ():
        if isinstance(stage, dict):
            stage.pop("env", None)


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
    if path.startswith("rlft.stages.") and isinstance(section := source.values.setdefault("rlft", {}), dict):
        section.setdefault("stages", [asdict(stage) for stage in RLFTSettings().stages])  # else there is none to change
    problem = _set(source.values, keys, value)
    if problem:
        source.problems.append(f"{said}: {problem}")
    _write_in_full(source.values)


def _write_in_full(values: Mapping[str, Any]) -> None:
    """Write a number that stands for a section as that section, which others can be merged with; in place."""
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
