"""YAML as recipes use it: text, numbers, truth values, null, lists and mappings by name, within limits."""

from __future__ import annotations

import re
from typing import Any

import yaml

from reflectrl.core import InvalidInput
from reflectrl.core.text import shortened

MAX_RECIPE_BYTES = 256 * 1024
"""Size of a recipe file; the longest shipped one has some three thousand bytes."""
MAX_NESTING = 50
"""Depth of lists and mappings inside each other."""
MAX_VALUES = 20_000
"""Number of values of a recipe; those of an alias count wherever it is used."""

_TAG = "tag:yaml.org,2002:"
_KINDS = {"null", "bool", "int", "float", "str", "seq", "map", "merge"}


class _Loader(yaml.SafeLoader):
    """The safe loader, but ``2e-4`` is a number, a date is text, and a whole number has at most 64 bits."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) in _KINDS]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def number(self, node: yaml.ScalarNode) -> int:
        # other bases are read however long they are, but nothing of that length can be shown
        number = self.construct_yaml_int(node) if len(node.value) <= 80 else 2**64
        if abs(number) >= 2**63:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return number


_Loader.add_constructor(f"{_TAG}int", _Loader.number)
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))


def read_yaml(text: str, what: str) -> tuple[Any, list[str]]:
    """The values in ``text``, and a line for each key that is given twice; ``what`` begins the errors.

    Keys are names, so ``1`` and ``no`` are text there.

    Raises:
        InvalidInput: not YAML, a kind of value that no recipe has, or more than the limits allow.

    """
    if len(text) > MAX_RECIPE_BYTES:
        raise InvalidInput(f"{what} has {len(text):,} characters; expected a recipe of at most {MAX_RECIPE_BYTES:,}.")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, []
        twice = _examine(node, what)
        return _unshared(loader.construct_document(node)), twice
    except RecursionError as error:
        raise _too_deep(what) from error
    except (yaml.YAMLError, ValueError, LookupError) as error:  # the latter for "!!int x", "!!bool x"
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{what} is no valid YAML: {shortened(' '.join(str(error).split()), 300)}.") from error


def _examine(root: yaml.Node, what: str) -> list[str]:
    """Refuse what no recipe has, turn keys into names, and return a line for each duplicate key."""
    twice: dict[str, None] = {}  # a set that keeps its order
    waiting, seen = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        line, seen = node.start_mark.line + 1, seen + 1
        if seen > MAX_VALUES:
            raise InvalidInput(f"{what} has more than {MAX_VALUES:,} values, its aliases written out; leave some out.")
        if depth > MAX_NESTING:
            raise _too_deep(what)
        if node.tag.removeprefix(_TAG) not in _KINDS:
            raise InvalidInput(
                f"{what} is no valid YAML for a recipe: line {line}: the tag {shortened(node.tag, 300)!r}; expected "
                "text, numbers, lists and mappings."
            )
        if isinstance(node, yaml.ScalarNode):
            if re.search("[\0\ud800-\udfff]", node.value):
                raise InvalidInput(f"{what}: line {line} has a character that no text may have: {node.value[:40]!r}.")
        elif isinstance(node, yaml.MappingNode):
            for key in _twice(node):
                name, where = shortened(key.value, 300), f"line {key.start_mark.line + 1}"
                twice[f"{where}: the key {name!r} is given twice; keep one."] = None
            waiting += [(part, depth + 1) for pair in reversed(node.value) for part in reversed(pair)]
        else:
            waiting += [(part, depth + 1) for part in reversed(node.value)]
    return list(twice)


def _twice(node: yaml.MappingNode) -> list[yaml.ScalarNode]:
    found: dict[str, yaml.ScalarNode] = {}
    again = []
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.tag.removeprefix(_TAG) in ("null", "bool", "int", "float"):
                key.tag = f"{_TAG}str"
            if found.setdefault(key.value, key) is not key:
                again.append(key)
    return again


def _unshared(value: Any) -> Any:
    """A copy in which what an alias stood for is a value of its own, so that an override changes one place."""
    if isinstance(value, dict):
        return {key: _unshared(part) for key, part in value.items()}
    return [_unshared(part) for part in value] if isinstance(value, list) else value


def _too_deep(what: str) -> InvalidInput:
    return InvalidInput(f"{what} nests lists and mappings more than {MAX_NESTING} deep; expected a recipe.")
