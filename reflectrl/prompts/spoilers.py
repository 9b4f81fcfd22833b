"""Checks that a reflection gives away nothing of a spoiler: neither the next action, nor words in a row.

They compare words, since a model seldom repeats a whole sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reflectrl.core.text import holds, words

QUOTED_WORDS = 4
"""Words in a row that make a quotation."""
_ENDINGS = "(?:e|s|es|ed|ing)?"
_BETWEEN = r"(?: (?:a|an|the|to|one|step|further|towards?))*"
_ADVICE = r" (?:should|must|need|next|now|best|will|shall|let|choose|try|going)(?: \w+){0,4}?"
"""Beginning of advice, in text as ``reflectrl.core.text.words`` writes it."""


def named(reflection: str, action: str, shown: str) -> bool:
    """Return whether ``reflection`` names ``action`` as the next one.

    An action that ``shown``, the player's prompt, names was perhaps played before: then it has to be advised, as in
    "you should move south".
    """
    pattern = f"{_BETWEEN} ".join(_inflected(word) for word in words(action).split())
    if not pattern:
        return False
    advised = f"{_ADVICE}{_BETWEEN}" if re.search(f" {pattern} ", words(shown)) else ""
    return re.search(f"{advised} {pattern} ", words(reflection)) is not None


def quoted(reflection: str, spoiler: str, public: Sequence[str]) -> str | None:
    """Return words in a row that ``reflection`` has of a sentence of ``spoiler`` and no ``public`` text has."""
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
