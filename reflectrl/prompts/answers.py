"""Thought and action of a policy as one JSON object (RL4VLM, sections 4.1 and 4.2): writing and parsing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from reflectrl.core import Written
from reflectrl.prompts.format import ActionMode
from reflectrl.prompts.menu import Menu

_ACTION = re.compile(r'"action"\s*:\s*"((?:[^"\\]|\\.)*)"')
_THOUGHTS = re.compile(r'"thoughts"\s*:\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Answer:
    """Parsed answer of a policy."""

    thought: str
    """Value of ``thoughts``; the whole text where there is none."""
    action_start: int
    """Position in the text of the first character of the last ``"action"``; the length of the text without one."""
    index: int | None
    """Position in the menu of the legal action that the answer names; ``None`` if it names none or several."""


def thought_of(written: Written, mode: ActionMode, menu: Menu) -> str:
    """Return the thought in a policy's text, on one line."""
    text = read_answer(written.text, menu).thought if mode == "json" else written.text
    return " ".join(text.split())


def json_answer(thought: str, action: str) -> str:
    """Return thought and action as the JSON text that ``read_answer`` parses."""
    return json.dumps({"thoughts": " ".join(thought.split()), "action": action}, ensure_ascii=False)


def read_answer(text: str, menu: Menu) -> Answer:
    """Parse an answer, which need not be complete JSON: the last ``"action"`` with a string value counts.

    The value names an action of ``menu`` if it equals it, up to case and runs of spaces, or else if it contains exactly
    one of the actions as whole words; ``go to shelf 10`` does not contain ``go to shelf 1``, nor ``5+`` a ``5`` where
    ``+`` is an action.
    """
    thought, actions = thought_in(text), [*_ACTION.finditer(text)]
    if not actions:
        return Answer(thought, len(text), None)
    return Answer(thought, actions[-1].start(), named_action(_unescaped(actions[-1][1]), menu))


def thought_in(text: str) -> str:
    """Return the last value of ``thoughts`` in a text; the whole text where there is none."""
    thoughts = [*_THOUGHTS.finditer(text)]
    return _unescaped(thoughts[-1][1]) if thoughts else text


def _unescaped(value: str) -> str:
    try:
        return str(json.loads(f'"{value}"', strict=False)).encode(errors="replace").decode()  # \ud800 is not text
    except ValueError:  # such as \q
        return value


def named_action(value: str, menu: Menu) -> int | None:
    """Return the position in the menu of the one action that a text names, by the rules of ``read_answer``."""
    names = [_plain(action) for action in menu.actions]
    value = _plain(value)
    if value in names:
        return names.index(value)
    signs = [name for name in names if not re.search(r"\w", name)]
    inside = re.escape("".join(signs))  # 5+ does not contain 5

    def whole(name: str) -> str:
        touching = r"\w" if name in signs else rf"[\w{inside}]"
        return rf"(?<!{touching}){re.escape(name)}(?!{touching})"

    # longest first, so that "take cup from shelf" is not found as "take cup"
    found = set(re.findall("|".join(map(whole, sorted(names, key=len, reverse=True))), value))
    return names.index(found.pop()) if len(found) == 1 else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
