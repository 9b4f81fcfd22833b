"""The subset of YAML that recipes use: text, numbers, booleans, null, lists, and mappings whose keys are text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import yaml

from reflectrl.core import InvalidInput
from reflectrl.core.text import shortened

_TAG = "tag:yaml.org,2002:"
_KINDS = {"null", "bool", "int", "float", "str", "seq", "map", "merge"}
_TEXT_ELSEWHERE = {f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")}


MAX_VALUES = 100_000
"""Maximum number of values in a file, with aliases expanded: a few lines of nested aliases could fill the memory."""


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, but ``2e-4`` is a number, dates and keys are text, and integers have at most 64 bits."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag.removeprefix(_TAG) in _KINDS]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.removeprefix(_TAG) in _KINDS
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[str] = []
        """Messages about keys that are given twice."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = f"{_TAG}str" if key.tag in _TEXT_ELSEWHERE else key.tag
                if key.value in names:
                    line, name = key.start_mark.line + 1, shortened(key.value, 300)
                    self.twice.append(f"line {line}: the key {name!r} is given twice; keep one.")
                names.add(key.value)
        return node

    def number(self, node: yaml.ScalarNode) -> int:
        number = self.construct_yaml_int(node)
        if abs(number) >= 2**63:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return number

    def text(self, node: yaml.ScalarNode) -> str:
        text = self.construct_yaml_str(node)
        if re.search("[\0\ud800-\udfff]", text):
            problem = f"a character that no text may have: {text[:40]!r}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return text


_Loader.add_constructor(f"{_TAG}int", _Loader.number)
_Loader.add_constructor(f"{_TAG}str", _Loader.text)
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))


def read_yaml(text: str, what: str) -> tuple[Any, list[str]]:
    """Return the values in ``text``, and a message for each key that is given twice; ``what`` begins the errors.

    Keys are text, also those that look like a number or a boolean, such as ``1`` and ``no``.

    Raises:
        InvalidInput: not YAML, or a kind of value that no recipe has.

    """
    try:
        loader = _Loader(text)
        return _unshared(loader.get_single_data(), itertools.count()), loader.twice
    except RecursionError as error:
        raise InvalidInput(f"{what} nests lists and mappings too deep, or in themselves; expected a recipe.") from error
    except (yaml.YAMLError, ValueError, LookupError) as error:  # the last two for "!!int x", "!!bool x"
        raise InvalidInput(f"{what} is no valid YAML: {shortened(' '.join(str(error).split()), 300)}.") from error


def _unshared(value: Any, copied: Iterator[int]) -> Any:
    """Return a copy in which each alias has its own copy of the value, so that an override changes one place only."""
    if next(copied) == MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values, with those that aliases stand for")
    if isinstance(value, dict):
        return {key: _unshared(part, copied) for key, part in value.items()}
    return [_unshared(part, copied) for part in value] if isinstance(value, list) else value
