"""Checks that a reflection reveals nothing of a spoiler: neither the next action nor several of its words in a row.

They compare runs of words, because a model seldom repeats a complete sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reflectrl.core.text import holds, words

QUOTED_WORDS = 4
"""Number of words in a row that count as a quotation."""
_ENDINGS = "(?:e|s|es|ed|ing)?"
_BETWEEN = r"(?: (?:a|an|the|to|one|step|further|towards?))*"
_ADVICE = r" (?:should|must|need|next|now|best|will|shall|let|choose|try|going)(?: \w+){0,4}?"
"""Pattern of the beginning of advice, for text in the form of ``reflectrl.core.text.words``."""


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
