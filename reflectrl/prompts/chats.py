"""Chats for remote models, made from local players' prompts, and parsers of their replies, which teachers use too."""

from __future__ import annotations

from reflectrl.core.messages import DECORATION, BadReply, Messages
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
