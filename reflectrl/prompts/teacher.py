"""``TeacherPrompts``: the chats of the large teacher model (section 4.2, appendices C.4 and D.1, reworded).

A teacher first reflects without naming its choice, then chooses from the menu in the same chat, so that both agree. It
is shown the same past actions as the small players, because its reflection must not refer to anything they cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from reflectrl.core import Hints
from reflectrl.core.messages import BadReply, LabelChat, Messages
from reflectrl.core.text import holds, words
from reflectrl.prompts.chats import KEEP, read_reflection
from reflectrl.prompts.menu import Menu
from reflectrl.prompts.prompt import CARRIED_CUE, unreadable
from reflectrl.prompts.views import View

_ACTIONS = r"(?:actions?|moves?|steps?|choices?|options?|commands?|decisions?)"
_CLAIMS = re.compile(
    r"(?<= )(?:"
    r"(?:sub)?optim(?:al(?:ly|ity)?|um)"
    rf"|best (?:(?:next|possible|available) )?{_ACTIONS}"
    r"|at best"
    r"|(?:i|we) (?:already )?know (?:what |where )?the (?:\w+ )?(?:answer|solution)"
    r"|(?:hidden|private|privileged|secret) (?:information|info|facts?|knowledge|notes?|hints?)"
    r"|spoilers?"
    r"|(?:the|this|that|my|your|a) notes?"
    r"|(?:was|were|am|been) told"
    r"|\d+ actions? (?:are |is )?left"
    r"|according to the (?:expert|oracle|hints?|instructor)"
    r")(?= )"
)
"""Phrases that claim hidden knowledge, for text in the form of ``reflectrl.core.text.words``."""
QUOTED_WORDS = 4
"""Number of words in a row that count as a quotation."""
_ENDINGS = "(?:e|s|es|ed|ing)?"
_BETWEEN = r"(?: (?:a|an|the|to|one|step|further|towards?))*"
_ADVICE = r" (?:should|must|need|next|now|best|will|shall|let|choose|try|going)(?: \w+){0,4}?"
"""Pattern of the beginning of advice, for text in the form of ``reflectrl.core.text.words``."""


def claims(reflection: str, shown: str) -> tuple[str, ...]:
    """Return the phrases of ``reflection`` that claim hidden knowledge, except those that ``shown`` contains too."""
    found = (claim[0] for claim in _CLAIMS.finditer(words(reflection)))
    return tuple(claim for claim in found if not holds(shown, claim))


def leaks(reflection: str, shown: str, secrets: Iterable[str]) -> tuple[str, ...]:
    """Return the ``secrets`` that ``reflection`` contains and ``shown`` does not."""
    return tuple(secret for secret in secrets if holds(reflection, secret) and not holds(shown, secret))


def repeats(reflection: str, spoiler: str, public: Sequence[str]) -> bool:
    """Return whether ``reflection`` contains a complete sentence of ``spoiler`` that is in no ``public`` text."""
    known = {words(sentence) for text in public for sentence in _sentences(text)}
    return any(words(sentence) not in known and holds(reflection, sentence) for sentence in _sentences(spoiler))


def _sentences(text: str) -> list[str]:
    return re.split(r"[.!?\n]+(?:\s|$)", text)


def named(reflection: str, action: str, shown: str) -> bool:
    """Return whether ``reflection`` names ``action`` as the next one.

    If ``shown``, the player's prompt, contains the action, it may be mentioned as a past one; then only advice counts,
    as in "you should move south".
    """
    pattern = f"{_BETWEEN} ".join(_inflected(word) for word in words(action).split())
    if not pattern:
        return False
    advised = f"{_ADVICE}{_BETWEEN}" if re.search(f" {pattern} ", words(shown)) else ""
    return re.search(f"{advised} {pattern} ", words(reflection)) is not None


def quoted(reflection: str, spoiler: str, public: Sequence[str]) -> str | None:
    """Return ``QUOTED_WORDS`` words in a row from a sentence of ``spoiler`` that ``reflection`` repeats, if any.

    Words that a ``public`` text contains as well do not count.
    """
    for sentence in re.split(r"[.!?\n]+(?:\s|$)", spoiler):
        for run in _runs(words(sentence).split()):
            if holds(reflection, run) and not any(holds(text, run) for text in public):
                return run
    return None


def _runs(sentence: Sequence[str]) -> Iterator[str]:
    for start in range(len(sentence) - QUOTED_WORDS + 1):
        yield " ".join(sentence[start : start + QUOTED_WORDS])


def _inflected(word: str) -> str:
    return f"{word.removesuffix('e')}{_ENDINGS}" if word.isalpha() else re.escape(word)


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
