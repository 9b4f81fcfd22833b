"""Recipes with mistakes, for tests and benchmarks: shipped ones, mutated value by value and as text."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from reflectrl.config import dump_recipe, load_recipe, recipe_names

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), -float("inf"), "", " ", "0", "null", "7", "none", "a" * 5000, "../" * 9, "/", "."),
    *("\u202e\U0001f695\u0301", "~", "x\x00y", "{", "textworld:", "company:nano:9999999999", "alfworld:all"),
    *([], [[]], [None], ["a", 1], {}, {"a": {"b": [1]}}, {"": ""}, b"\xff\x00", {1: 2}, {None: 0}, "\ud800"),
)
"""Values that replace a value of a recipe."""
LINES = (
    *("extends: [a]", "extends: mutated.yaml", "extends: /dev/zero", "extends: .", f"extends: {'x' * 5000}"),
    *(
        "a: &a [*a]",
        "<<: *nothing",
        "<<: 3",
        "seed: &s 1\nrlft: *s",
        "? [a, b]\n: 1",
        "? {a: 1}\n: 2",
        "1: 2",
        "null: 1",
    ),
    *("seed: 2020-01-01", "seed: 2020-99-99", "seed: !!int x", "seed: !!bool x", "seed: !!binary '*'", "seed: 1:99"),
    *(
        "name: !!python/name:os.system",
        "env: !!map [1]",
        "env: !!set {a}",
        "seed: 1\nseed: 2",
        "\tseed: 1",
        "- 1",
        "---",
    ),
    *(
        f"seed: {'9' * 5000}",
        f"seed: 0x{'f' * 5000}",
        f"name: {'[' * 5000}",
        f"env: {'{a: ' * 60}1{'}' * 60}",
        "%YAML 9",
    ),
    *(
        'name: "\\ud800"',
        'name: "a\\0b"',
        "name: 'a",
        "env: {name: number_line, options: &o {size: *o}}",
        "rlft: &r {}",
    ),
)
"""Lines that are inserted into the text of a recipe."""


def shipped() -> list[dict[str, Any]]:
    """Return every shipped recipe with all settings, including defaults."""
    return [yaml.safe_load(dump_recipe(load_recipe(name))) for name in recipe_names()]


def mutant(rng: random.Random, recipe: dict[str, Any]) -> str:
    """Return the YAML of ``recipe`` with up to four mistakes or oddities."""
    values = copy.deepcopy(recipe)
    for _ in range(rng.randint(0, 3)):
        _break_value(rng, values)
    text = yaml.dump(values, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=rng.random() < 0.5)
    return rng.choice(_TEXTS)(rng, text) if rng.random() < 0.5 else text


def _break_value(rng: random.Random, values: dict[str, Any]) -> None:
    """Delete, rename, replace or add a value at a random place."""
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [values]
    while waiting:
        part = waiting.pop()
        inside = list(part.items()) if isinstance(part, dict) else list(enumerate(part))
        places += [(part, key) for key, _ in inside]
        waiting += [value for _, value in inside if isinstance(value, dict | list)]
    if not places:
        return
    part, key = rng.choice(places)
    deed = rng.choice(("replace", "replace", "delete", "rename", "add", "wrap"))
    if deed == "replace":
        part[key] = copy.deepcopy(rng.choice(VALUES))
    elif deed == "wrap":
        part[key] = rng.choice(([part[key]], {"a": part[key]}, str(part[key])))
    elif deed == "delete":
        del part[key]
    elif isinstance(part, list):
        part.append(copy.deepcopy(rng.choice(VALUES)))
    else:
        name = rng.choice((f"{key}s", str(key)[:-1], str(key).upper(), 7, None, True, "é", "a.b"))
        part[name] = part.pop(key) if deed == "rename" else copy.deepcopy(rng.choice(VALUES))


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text))]


def _insert(rng: random.Random, text: str) -> str:
    place = rng.randrange(len(text))
    return text[:place] + rng.choice((*"\t:[]{}&*!|>'\"%@`#\n-?, ", "\x00", "\x85", "\ufeff", "\u2028")) + text[place:]


def _line(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    lines.insert(rng.choice((0, len(lines) - 1, rng.randrange(len(lines)))), rng.choice(LINES))
    return "\n".join(lines)


def _swap(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return "\n".join(lines)


_TEXTS: Sequence[Callable[[random.Random, str], str]] = (_cut, _insert, _line, _line, _swap)
