"""Chats for remote models, made from local players' prompts, and parsers of their replies, which teachers use too.

Thought and action of a policy as text, in JSON (RL4VLM, sections 4.1 and 4.2) or plain, are written and parsed here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from reflectrl.core import Written
from reflectrl.core.messages import DECORATION, BadReply, Messages
from reflectrl.core.text import one_line
from reflectrl.prompts.format import WRITTEN_ACTIONS, ActionMode
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import CARRIED_CUE, Prompt

KEEP = (
    f"After `{CARRIED_CUE}` stands your reflection of the step before, which nobody will see again: say once more "
    "whatever in it will still be needed, and correct what has proved wrong."
)
"""What a reflector that carries its words is told in addition."""
POLICY_ROLE = (
    "You play step by step. Each state ends with a menu of actions, one `label. action` a line. Answer with the label "
    "of the action you choose and nothing else."
)
LISTED_ROLE = (
    "You play step by step. Actions have labels, one `label. action` a line: those that are mostly possible are listed "
    "before the state, others after it, and `Not now` names listed labels that cannot be chosen in this state. Answer "
    "with the label of the action you choose and nothing else."
)
"""Variant of ``POLICY_ROLE`` for prompts with a list of common actions."""


def plain_prompt(chat: Messages, cue: str, menu: Menu | None = None) -> Prompt:
    """Return a chat as a plain prompt; the text between its role and its last paragraph may be cut."""
    role, asked = (message["content"] for message in chat)
    material, _, question = asked.rpartition("\n\n")
    return Prompt(f"{role}\n\n", (), f"{question}\n{cue}", menu, state=f"{material}\n\n")


def policy_chat(prompt: Prompt) -> Messages:
    """Return the chat that asks for a label of a policy's prompt; raise as ``Prompt.as_text`` does."""
    role = LISTED_ROLE if prompt.menu and prompt.menu.common else POLICY_ROLE
    return [{"role": "system", "content": role}, {"role": "user", "content": prompt.as_text()}]


def read_reflection(reply: str) -> str:
    """Return the reply on one line, because a line break would end the reflection's line in the policy's prompt."""
    return " ".join(reply.split())


def read_label(reply: str, menu: Menu) -> int:
    """Return the position of the chosen action.

    Raises:
        BadReply: apart from ``DECORATION``, the reply is neither one label nor one complete line of the menu.
    """
    bare = reply.strip(DECORATION)
    for known in (menu.labels, menu.text.splitlines()):
        choices = [choice.strip(DECORATION) for choice in known]  # an action may begin or end with such characters
        if bare in choices:
            return choices.index(bare)
    raise BadReply(f"That is not a label of the menu. Answer with exactly one of: {', '.join(menu.labels)}.")


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
