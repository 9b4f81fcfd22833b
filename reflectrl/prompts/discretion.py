"""Checks that a reflection states no hidden facts and claims no knowledge that a player cannot have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reflectrl.core.text import holds, words

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
