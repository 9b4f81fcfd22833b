"""The YAML of recipes: PyYAML's, with numbers and dates as in YAML 1.2, and no value that JSON cannot hold."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from reflectrl.core import InvalidInput
from reflectrl.core.text import shortened

_TAG = "tag:yaml.org,2002:"
MAX_VALUES = 100_000
"""Maximum number of values in a file, with aliases expanded: a few lines of nested aliases could fill the memory."""


class _Loader(yaml.SafeLoader):
    """The safe loader, but ``2e-4`` is a number, and dates and keys are text, also keys such as ``1`` and ``no``."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != f"{_TAG}timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.twice: list[str] = []
        """Messages about keys that are given twice, of which PyYAML would take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                key.tag = key.tag if key.tag == f"{_TAG}merge" else f"{_TAG}str"
                if key.value in names:
                    line, name = key.start_mark.line + 1, shortened(key.value, 300)
                    self.twice.append(f"line {line}: the key {name!r} is given twice; keep one.")
                names.add(key.value)
        return node


_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+0123456789."))


def read_yaml(text: str, what: str) -> tuple[Any, list[str]]:
    """Return the values in ``text``, and a message for each key that is given twice; ``what`` begins the errors.

    Raises:
        InvalidInput: not YAML, or a kind of value that no recipe has.
    """
    try:
        values, twice = _parsed(text)
        return _plain(values, itertools.count()), list(twice)
    except RecursionError as error:
        raise InvalidInput(f"{what} nests lists and mappings too deep, or in themselves; expected a recipe.") from error
    except (yaml.YAMLError, ValueError, LookupError) as error:  # the last two for "!!int x", "!!bool x"
        raise InvalidInput(f"{what} is not valid YAML: {shortened(' '.join(str(error).split()), 300)}.") from error


@functools.lru_cache(maxsize=64)  # parsing takes a tenth of a second, and a file is read again for each of its arms
def _parsed(text: str) -> tuple[Any, Sequence[str]]:
    loader = _Loader(text)
    return loader.get_single_data(), loader.twice


def _plain(value: Any, copied: Iterator[int]) -> Any:
    """Return a copy in which each alias has its own copy of the value, so that an override changes one place only."""
    if next(copied) == MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values, with those that aliases stand for")
    if isinstance(value, dict):
        return {_plain(key, copied): _plain(part, copied) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part, copied) for part in value]
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise ValueError(f"it holds a character that no text may have: {value[:40]!r}")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("it holds a number of more than 64 bits")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"it holds a value of type {type(value).__name__}")
