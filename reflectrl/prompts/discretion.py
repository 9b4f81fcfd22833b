"""Checks that a reflection states no hidden facts, claims no knowledge of them, and reveals nothing of a spoiler.

A spoiler's words are compared in runs, because a model seldom repeats a complete sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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
