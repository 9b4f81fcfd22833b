"""Questions that exactly one file of a repository answers: an agent that must find a file cannot be asked others.

The criterion is about words only: a question is clear if few files hold its content words.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from reflectrl.core.text import one_line

Pair = tuple[str, str]
"""A question and its answer."""

_WORD = re.compile(r"[^\W_]+")

STOP_WORDS = frozenset(
    _WORD.findall("""
    a about all also am an and any are as at be been being but by can could did do does doing done each for from get
    had has have having he her here him his how i if in into is it its just let may me might more most must my no nor
    not of on one only or other our ours out over own please same shall she should so some such than that the their
    them then there these they this those to too under up upon us was we were what when where which while who whom
    whose why will with within without would you your yours
    d ll m re s t ve
    code column contain contains cover covers described describe describes document documents explain explained
    explains file files find found give gives holds implement implemented implements know learn look looking mention
    mentioned mentions need needed program read say says see show shows table tell want wants
    """)
)
"""Words that identify no file: English function words, and words common in questions about files."""


@dataclass(frozen=True)
class Kept:
    """Questions of a repository that were kept."""

    pairs: Mapping[str, tuple[Pair, ...]]
    """Questions by file, in the order in which they were written; files without questions are left out."""
    rejected: Mapping[str, int]
    """Number of questions by reason."""


def words_of(text: str) -> list[str]:
    """Return the words of ``text`` in their order, lower-cased; ``rent_lisbon`` is two words."""
    return _WORD.findall(text.lower())


def content_words(text: str) -> frozenset[str]:
    """Return the different words of ``text`` without stop words."""
    return frozenset(words_of(text)) - STOP_WORDS


def answerable(texts: Mapping[str, str], pairs: Mapping[str, Sequence[Pair]]) -> Kept:
    """Keep the questions whose content words all occur in the file asked about, and together in no other file.

    Args:
        texts: every file that an agent may look at, with as much of its text as is known. Its path counts as text.
        pairs: the questions written for each file.

    """
    clean = {file: [(one_line(question), one_line(answer)) for question, answer in pairs[file]] for file in pairs}
    asked = Counter(question for written in clean.values() for question in {q.casefold() for q, _ in written})
    holders = holders_of(texts, (question for written in clean.values() for question, _ in written))
    rejected: Counter[str] = Counter()
    kept: dict[str, tuple[Pair, ...]] = {}
    for file, written in clean.items():
        good: dict[str, Pair] = {}
        for question, answer in written:
            key = question.casefold()
            reason = "duplicate" if asked[key] > 1 or key in good else _fault(file, question, answer, holders)
            if reason is None:
                good[key] = (question, answer)
            else:
                rejected[reason] += 1
        if good:
            kept[file] = tuple(good.values())
    return Kept(kept, dict(sorted(rejected.items())))


def holders_of(texts: Mapping[str, str], questions: Iterable[str]) -> Mapping[str, set[str]]:
    """Return the files in which each word of the questions occurs; no other words, so that large repositories fit."""
    wanted = frozenset[str]().union(*map(content_words, questions))
    holders: defaultdict[str, set[str]] = defaultdict(set)
    for file, text in texts.items():
        for word in wanted.intersection(words_of(f"{file}\n{text}")):
            holders[word].add(file)
    return holders


def _fault(file: str, question: str, answer: str, holders: Mapping[str, set[str]]) -> str | None:
    words = content_words(question)
    if not answer or not words:
        return "empty"
    if re.search(rf"(?<!\w){re.escape(PurePosixPath(file).name.lower())}(?!\w)", question.lower()):
        return "names its file"
    if not all(file in holders.get(word, ()) for word in words):
        return "unanswerable"
    rarest_first = sorted((holders[word] for word in words), key=len)
    return "ambiguous" if len(set.intersection(*rarest_first)) > 1 else None
