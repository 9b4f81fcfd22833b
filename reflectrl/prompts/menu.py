"""Menus: the legal actions of a state, one ``label. action`` per line (single-prompt action enumeration, section 4.3).

Labels are strings here; ``reflectrl.lm`` checks that each is one token of its tokenizer.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from reflectrl.core import NO_MENU, InvalidInput, nearest

LABEL_KINDS = ("numbers", "letters", "added")
_ALPHABET = string.ascii_uppercase + string.ascii_lowercase


def labels(kind: str, count: int) -> tuple[str, ...]:
    """Return the first ``count`` labels of a kind: numbers from 0, letters A-Z a-z, or tokens added to the tokenizer.

    Raises:
        InvalidInput: an unknown kind, or a ``count`` above the number of letters.
    """
    if kind == "numbers":
        return tuple(str(number) for number in range(count))
    if kind == "added":
        return tuple(f"<|{number}|>" for number in range(count))
    if kind != "letters":
        raise InvalidInput(f"labels {kind!r} is unknown; {nearest(kind, LABEL_KINDS)}")
    if count > len(_ALPHABET):
        raise InvalidInput(
            f"menus and prompt.known_actions need {count} labels, but labels=letters has {len(_ALPHABET)}; use "
            "prompt.labels=added."
        )
    return tuple(_ALPHABET[:count])


def position(label: str) -> int:
    """Return the position of a label among those of its kind."""
    return _ALPHABET.index(label) if label.isalpha() else int(label.strip("<|>"))


Lines = tuple[tuple[str, str], ...]
"""Text as pairs of a menu label and the text after it; the label is empty for text that follows no label."""
NOT_NOW = "Not now:"
"""Beginning of the line with the labels of listed common actions that are illegal in the state."""


@dataclass(frozen=True)
class Menu:
    """The legal actions of a state, and the lines that show them in a prompt."""

    labels: tuple[str, ...]
    """(n,) label of each action."""
    actions: tuple[str, ...]
    """(n,) the legal actions, in the order shown."""
    common: tuple[str, ...] = ()
    """(c,) common actions listed in the prompt's head, legal in this state or not; empty without such a list."""
    common_labels: tuple[str, ...] = ()
    """(c,) labels of the common actions."""

    def place_of(self, action: str) -> int:
        """Return the position of an action in the order shown; ``NO_MENU`` where there is no menu."""
        return self.actions.index(action) if self.actions else NO_MENU

    @cached_property
    def all_labels(self) -> tuple[str, ...]:
        """(m,) all labels of the prompt, those of the head first."""
        return (*self.common_labels, *(label for label, _ in self._others))

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """(n,) position of each action's label among the labels of its kind."""
        return tuple(map(position, self.labels))

    @cached_property
    def size(self) -> int:
        """Number of labels of the kind up to the last one of the prompt."""
        return 1 + max(map(position, self.all_labels), default=-1)

    @cached_property
    def text(self) -> str:
        """All legal actions, one ``label. action`` per line, each line ending with a newline."""
        return text_of(_lines(zip(self.labels, self.actions, strict=True)))

    @cached_property
    def head(self) -> Lines:
        """Lines of the common actions, which are the same in every state of an episode."""
        return _lines(zip(self.common_labels, self.common, strict=True))

    @cached_property
    def tail(self) -> Lines:
        """Lines that depend on the state: legal actions missing from the head, then labels of illegal head actions."""
        legal = set(self.labels)
        illegal = [label for label in self.common_labels if label not in legal]
        named = [(label, " ") for label in illegal[:-1]] + [(label, "\n") for label in illegal[-1:]]
        return (*_lines(self._others), *((("", f"{NOT_NOW} "), *named) if illegal else ()))

    @cached_property
    def head_text(self) -> str:
        """Text of ``head``."""
        return text_of(self.head)

    @cached_property
    def tail_text(self) -> str:
        """Text of ``tail``; the complete menu where the head lists no actions."""
        return text_of(self.tail)

    @cached_property
    def _others(self) -> list[tuple[str, str]]:
        listed = set(self.common_labels)
        return [(label, action) for label, action in zip(self.labels, self.actions, strict=True) if label not in listed]


def _lines(labelled: Iterable[tuple[str, str]]) -> Lines:
    return tuple((label, f". {action}\n") for label, action in labelled)


def text_of(lines: Lines) -> str:
    """Return the pieces of ``lines`` joined to one text."""
    return "".join(part for line in lines for part in line)


@lru_cache(maxsize=1024)
def make_menu(actions: tuple[str, ...], kind: str, common: tuple[str, ...] = (), known: tuple[str, ...] = ()) -> Menu:
    """Return the menu of the legal ``actions``, in the order shown.

    ``known`` actions have the first labels, whether they are legal or not, then come the ``common`` ones.
    """
    listed, legal = set(common), set(actions)
    others = tuple(action for action in actions if action not in listed)
    labelled = tuple(dict.fromkeys((*known, *common, *others)))
    label = dict(zip(labelled, labels(kind, len(labelled)), strict=True))
    shown = (*(action for action in common if action in legal), *others)
    return Menu(tuple(label[action] for action in shown), shown, common, tuple(label[action] for action in common))
