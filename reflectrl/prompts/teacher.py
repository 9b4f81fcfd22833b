"""``TeacherPrompts``: the chats of the large teacher model (section 4.2, appendices C.4 and D.1, reworded).

A teacher first reflects without naming its choice, then chooses from the menu in the same chat, so that both agree. It
is shown the same past actions as the small players, because its reflection must not refer to anything they cannot read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.core import Hints
from reflectrl.core.chat import BadReply, LabelChat, Messages
from reflectrl.core.text import holds
from reflectrl.prompts.chat import KEEP, read_reflection
from reflectrl.prompts.discretion import claims, leaks, named, quoted, repeats
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import CARRIED_CUE, unreadable
from reflectrl.prompts.views import View

TEACHER_ROLE = (
    "You think aloud for a player who acts step by step. When asked to reflect, write one short paragraph: what the "
    "last action led to and whether it was good or bad and why, where things stand, what to aim for next. When asked "
    "to choose, answer with a label only. Never claim to know what the state does not show, and never call an action "
    "optimal or the best."
)
DISCRETION = (
    " You may be given a private note with facts that the player cannot see. Let it keep you right, but reason from "
    "the state alone: never quote the note, and never hint that it exists."
)
REFLECT = "Reflect on this state in at most 50 words. Do not name your choice yet."
MISTAKEN = (
    "The last action was a mistake. Say why it did not help and how to recover from it, in at most 50 words. Do not "
    "name your choice yet."
)
PERHAPS_MISTAKEN = (
    "The last action may have been a mistake. If it was, say why it did not help and how to recover from it; if not, "
    "reflect on this state. Use at most 50 words. Do not name your choice yet."
)
CHOOSE = "Now choose. Answer with the label of one action and nothing else."
NOTE = "Private note"


@dataclass(frozen=True)
class TeacherPrompts:
    """Writer of the teacher's chats for one environment."""

    instructions: str
    """Rules of the environment; a teacher always reads them, even if the local players' prompts leave them out."""
    carry: bool = False
    """Show the reflection of the step before, which the local reflector reads, too."""

    def reflect(self, seen: View, *, spoiler: str | None = None, mistaken: bool | None = False) -> Messages:
        """Return the chat that asks for a reflection.

        Args:
            seen: the local reflector's view; the teacher reads the same state and the same past actions.
            spoiler: privileged facts for a reflection on an expert's episode; the model is asked to keep them private.
            mistaken: whether the last action was worse than the expert's; ``None`` if it may have been.

        Raises:
            InvalidInput: the state is shown by an image only.

        """
        if seen.observation.images and not seen.observation.text.strip():
            raise unreadable()
        role = TEACHER_ROLE + (DISCRETION if spoiler else "")
        task = f"{seen.observation.task}\n" if seen.observation.task else ""
        history = "".join(seen.prompt.history)
        note = f"{NOTE}: {spoiler}\n" if spoiler else ""
        keep = f" {KEEP}" if self.carry else ""
        before = f"{CARRIED_CUE} {seen.before.get('reflector', '')}".rstrip() + "\n" if self.carry else ""
        request = PERHAPS_MISTAKEN if mistaken is None else MISTAKEN if mistaken else REFLECT
        return [
            {"role": "system", "content": f"{role}{keep}\n\n{self.instructions}".rstrip()},
            {"role": "user", "content": f"{task}{history}{seen.observation.text}\n{before}\n{note}{request}"},
        ]

    @staticmethod
    def choose(chat: Messages, reflection: str, menu: Menu) -> Messages:
        """Return the chat of ``reflect`` continued with its reply, the menu and the request for a label."""
        question = {"role": "user", "content": f"{menu.text}\n{CHOOSE}"}
        return LabelChat([*chat, {"role": "assistant", "content": reflection}, question], menu.labels, menu.actions)


def read_honest(reply: str, shown: str) -> str:
    """Return a teacher's reflection, after a check that it claims no knowledge beyond ``shown``, the player's prompt.

    Raises:
        BadReply: the reflection claims hidden knowledge.

    """
    if claimed := claims(reply, shown):
        raise BadReply(_again(claimed[0]))
    return read_reflection(reply)


def read_discreet(reply: str, hints: Hints, menu: Sequence[str], shown: str) -> str:
    """Return the reflection of a teacher that was given ``hints.spoiler``, after a check that it reveals no secret.

    Facts in the environment's own public reflection or in the player's prompt are not secret.

    Raises:
        BadReply: the reflection names the next action, repeats words of the spoiler, states a secret, or claims hidden
            knowledge.

    """
    if repeats(reply, hints.spoiler or "", public=(hints.reflection or "", *menu)) or holds(reply, NOTE):
        raise BadReply(
            "That repeats the private note. Write the reflection again from the state alone, in other words."
        )
    if hints.spoiler and hints.action and named(reply, hints.action, shown):
        raise BadReply(
            f"Do not name the next action ({hints.action!r}), in these or other words. Write the reflection again: "
            "where things stand, and what to aim for."
        )
    if run := quoted(reply, hints.spoiler or "", public=(hints.reflection or "", shown)):
        raise BadReply(_again(run))
    if leaked := leaks(reply, shown, hints.secrets):
        raise BadReply(_again(leaked[0]))
    return read_honest(reply, shown)


def _again(said: str) -> str:
    return (
        f"Do not say {said!r}, which is more than the player can know. Write the reflection again from the state alone."
    )
