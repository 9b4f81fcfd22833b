"""Search for words in a text, ignoring case and punctuation."""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[^\W_]+")


@lru_cache(maxsize=4096)
def words(text: str) -> str:
    """The words of ``text`` in lower case, with one space before, between and after them."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def holds(text: str, phrase: str) -> bool:
    """Does ``text`` have the words of ``phrase`` one after the other? A phrase without words is in no text."""
    wanted = words(phrase)
    return bool(wanted.strip()) and wanted in words(text)
