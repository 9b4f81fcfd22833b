"""Chats for remote models, made from local players' prompts, and parsers of their replies, which teachers use too."""

from __future__ import annotations

import json
from collections.abc import Sequence

from reflectrl.core.chat import DECORATION, BadReply, Messages, PicturedChat
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import CARRIED_CUE, Prompt
from reflectrl.prompts.views import View

REFLECTOR_ROLE = (
    "You advise a player. Judge the player's last action if there was one, say where things stand and what matters "
    "next, in one paragraph of at most 50 words. Answer with the reflection only."
)
KEEP = (
    f"After `{CARRIED_CUE}` stands your reflection of the step before, which nobody will see again: say once more "
    "whatever in it will still be needed, and correct what has proved wrong."
)
"""What a reflector that carries its words is told besides."""
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


def reflector_chat(prompt: Prompt) -> Messages:
    """Return the chat that asks for a reflection on a reflector's prompt; raise as ``Prompt.as_text`` does."""
    carries = any(line.startswith(CARRIED_CUE) for line in prompt.said.splitlines())
    role = f"{REFLECTOR_ROLE} {KEEP}" if carries else REFLECTOR_ROLE
    return [{"role": "system", "content": role}, {"role": "user", "content": prompt.as_text()}]


def plain_prompt(chat: Messages, cue: str, menu: Menu | None = None) -> Prompt:
    """Return a chat as a plain prompt; the text between its role and its last paragraph may be cut."""
    role, asked = (message["content"] for message in chat)
    material, _, question = asked.rpartition("\n\n")
    return Prompt(f"{role}\n\n", (), f"{question}\n{cue}", menu, state=f"{material}\n\n")


def policy_chat(prompt: Prompt) -> Messages:
    """Return the chat that asks for a label of a policy's prompt; raise as ``Prompt.as_text`` does."""
    role = LISTED_ROLE if prompt.menu and prompt.menu.common else POLICY_ROLE
    return [{"role": "system", "content": role}, {"role": "user", "content": prompt.as_text()}]


_CORRECTOR_ROLE = "You check the thought of a player before a move. {questions} Answer with a JSON object: {answers}"
_EVALUATION = (
    '"evaluation" is YES if the thought is right, else NO, and "correction" is then the thought that the player should '
    "have had, in its style and in one sentence or two, without naming a move."
)
_QUESTIONS = (
    "Does it say rightly what the state shows?",
    "Does it judge the last action rightly?",
    "Does the move serve it?",
)


def corrector_chat(view: View, *, images: bool = False, questions: Sequence[str] = ()) -> Messages:
    """Return the chat that asks whether the thought in a corrector's view is right, and for a correction if not.

    See GTR, section 4. With ``images``, the chat shows the view's pictures of the state, if any. The model is to answer
    each of ``questions`` before its evaluation. Raises as ``thought_shown`` does.
    """
    numbered = "".join(f"\n{number}. {question}" for number, question in enumerate(questions, start=1))
    answers = "".join(f'"answer{number}", ' for number in range(1, len(questions) + 1))
    role = _CORRECTOR_ROLE.format(
        questions="Answer the questions about it, briefly." if questions else " ".join(_QUESTIONS),
        answers=f"{answers}one for each question; then {_EVALUATION}" if questions else _EVALUATION,
    )
    asked = thought_shown(view, images=images) + (f"\nQuestions:{numbered}" if questions else "")
    chat = [{"role": "system", "content": role}, {"role": "user", "content": asked}]
    return PicturedChat(chat, view.prompt.images) if images else chat


def thought_shown(view: View, *, images: bool = False) -> str:
    """Return the text that a corrector reads: state, legal actions, the view's spoiler, if any, thought and action.

    Raises:
        InvalidInput: the state is shown by an image only, and the corrector reads text only (``images`` is false).

    """
    prompt = view.prompt
    if not images:
        prompt.as_text()
    seen = "".join((prompt.head, *prompt.history, prompt.state))
    moves = ", ".join(prompt.menu.actions) if prompt.menu else ""
    found = f"A solver found: {view.hints.spoiler}\n" if view.hints and view.hints.spoiler else ""
    thought = view.said["policy"] or "(empty)"
    return f"{seen}Possible moves: {moves}\n{found}Thought: {thought}\nMove: {view.action}"


def read_correction(reply: str) -> str:
    """Return the corrected thought on one line; the empty text if the thought was right.

    Of a correction in the policy's own form, ``{"thoughts": ..., "action": ...}`` or a text with it, only the thought
    counts.

    Raises:
        BadReply: no JSON object with an evaluation, or NO without a correction.

    """
    answer = _object_in(reply)
    evaluation = str(answer.get("evaluation", "")).strip().upper()
    if evaluation == "YES":
        return ""
    correction = answer.get("correction")
    if isinstance(correction, str):
        correction = _object_in(correction).get("thoughts", correction)
    elif isinstance(correction, dict):
        correction = correction.get("thoughts")
    if evaluation != "NO" or not isinstance(correction, str) or not correction.strip():
        raise BadReply('Answer with {"evaluation": "YES"}, or with {"evaluation": "NO", "correction": "..."}.')
    return " ".join(correction.encode(errors="replace").decode().split())  # JSON may hold lone surrogates


def _object_in(text: str) -> dict[str, object]:
    """Return the JSON object in a text; an empty one where there is none."""
    try:
        found = json.loads(text[text.find("{") : text.rfind("}") + 1], strict=False)
    except (ValueError, RecursionError):  # syntax, or too many brackets
        return {}
    return found if isinstance(found, dict) else {}


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
