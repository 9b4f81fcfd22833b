"""Thought and action of a policy as text, in JSON (RL4VLM, sections 4.1 and 4.2) or plain: writing and parsing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from reflectrl.core import Written
from reflectrl.core.text import one_line
from reflectrl.prompts.format import WRITTEN_ACTIONS, ActionMode
from reflectrl.prompts.menu import Menu

_ACTION = re.compile(r'"action"\s*:\s*"((?:[^"\\]|\\.)*)"')
_THOUGHTS = re.compile(r'"thoughts"\s*:\s*"((?:[^"\\]|\\.)*)"')


_THINK, _THOUGHT_ENDS = "<think>", "</think>"


@dataclass(frozen=True)
class Answer:
    """Parsed answer of a policy that writes its action."""

    thought: str
    """The thought; in JSON without any, the whole text."""
    action_start: int
    """Position in the text of the first character that belongs to the action (in JSON, of the last ``"action"``); the
    length of the text without one."""
    action: str
    """The action on one line; empty without one."""


def thought_of(written: Written, mode: ActionMode) -> str:
    """Return the thought in a policy's text, on one line."""
    text = read_answer(written.text, mode).thought if mode in WRITTEN_ACTIONS else written.text
    return " ".join(text.split())


def answer_text(mode: ActionMode, thought: str, action: str) -> str:
    """Return thought and action as the text of a policy with this mode, which ``read_answer`` parses."""
    thought = " ".join(thought.split())
    if mode == "json":
        return json.dumps({"thoughts": thought, "action": action}, ensure_ascii=False)
    return f"{_THINK}{thought}{_THOUGHT_ENDS} {action}" if mode == "thought_text" else action


def read_answer(text: str, mode: ActionMode) -> Answer:
    """Parse an answer.

    In JSON, which need not be complete, the last ``"action"`` with a string value counts. Otherwise the action is the
    first line with words after the last ``</think>``; a thought that does not end is followed by no action.
    """
    if mode == "json":
        actions = [*_ACTION.finditer(text)]
        start, action = (actions[-1].start(), _unescaped(actions[-1][1])) if actions else (len(text), "")
        return Answer(thought_in(text), start, one_line(action))
    thought, ended, after = text.rpartition(_THOUGHT_ENDS)
    if not ended and (mode == "thought_text" or text.lstrip().startswith(_THINK)):
        thought, after = text, ""
    line = next((line for line in after.splitlines() if one_line(line)), "")
    start = len(text) - len(after) + after.find(line) if line else len(text)
    return Answer(thought.strip().removeprefix(_THINK), start, one_line(line))


def index_of(action: str, menu: Menu, mode: ActionMode) -> int | None:
    """Return the position in the menu of the action that a policy wrote; ``None`` if that names none or several.

    In JSON by the rules of ``named_action``; otherwise it has to be the action, up to case and runs of spaces.
    """
    if mode == "json":
        return named_action(action, menu)
    names = [_plain(each) for each in menu.actions]
    return names.index(_plain(action)) if _plain(action) in names else None


def thought_in(text: str) -> str:
    """Return the thought in a text of any mode; the whole text where nothing marks one."""
    if _THOUGHT_ENDS in text:
        return text.rpartition(_THOUGHT_ENDS)[0].strip().removeprefix(_THINK)
    thoughts = [*_THOUGHTS.finditer(text)]
    return _unescaped(thoughts[-1][1]) if thoughts else text


def _unescaped(value: str) -> str:
    try:
        return str(json.loads(f'"{value}"', strict=False)).encode(errors="replace").decode()  # \ud800 is not text
    except ValueError:  # such as \q
        return value


def named_action(value: str, menu: Menu) -> int | None:
    """Return the position in the menu of the one action that a text names; ``None`` if it names none or several.

    It names an action that it equals, up to case and runs of spaces, or else the only one that it contains as whole
    words; ``go to shelf 10`` does not contain ``go to shelf 1``, nor ``5+`` a ``5`` where ``+`` is an action.
    """
    names = [_plain(action) for action in menu.actions]
    value = _plain(value)
    if value in names or not names:
        return names.index(value) if names else None
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
