"""Menus: the legal actions of a state, one ``label. action`` a line (single-prompt action enumeration, section 4.3).

Labels are strings here; ``reflectrl.models`` checks that each is one token of its tokenizer.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from functools import cached_property, lru_cache

from reflectrl.core import InvalidInput, nearest

LABEL_KINDS = ("numbers", "letters", "added")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase


def labels(kind: str, count: int) -> tuple[str, ...]:
    """Return the first ``count`` labels of a kind: numbers from 0, letters A-Z a-z, or tokens added to the tokenizer.

    Raises:
        InvalidInput: unknown kind, or more letters wanted than there are.

    """
    if kind == "numbers":
        return tuple(str(number) for number in range(count))
    if kind == "added":
        return tuple(f"<|{number}|>" for number in range(count))
    if kind != "letters":
        raise InvalidInput(f"labels {kind!r} is unknown; {nearest(kind, LABEL_KINDS)}")
    if count > len(_ALPHABET):
        raise InvalidInput(
            f"a menu of {count} actions was given but labels=letters has {len(_ALPHABET)}; use prompt.labels=added."
        )
    return tuple(_ALPHABET[:count])


@dataclass(frozen=True)
class Menu:
    """Labels and actions side by side, in the order shown."""

    labels: tuple[str, ...]
    actions: tuple[str, ...]

    @cached_property
    def text(self) -> str:
        """Text of the menu: one ``label. action`` a line, each line ended by a newline."""
        return "".join(f"{label}. {action}\n" for label, action in zip(self.labels, self.actions, strict=True))


def make_menu(actions: tuple[str, ...], kind: str, shuffle: random.Random | None = None) -> Menu:
    """Label ``actions``; with ``shuffle``, in an order drawn from it, so that positions cannot be memorised."""
    if shuffle is None:
        return _menu(kind, actions)
    order = list(actions)
    shuffle.shuffle(order)
    return _menu(kind, tuple(order))


@lru_cache(maxsize=1024)
def _menu(kind: str, actions: tuple[str, ...]) -> Menu:
    return Menu(labels(kind, len(actions)), actions)
