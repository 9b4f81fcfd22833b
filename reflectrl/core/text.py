"""Operations on texts: make them safe to show, shorten them, find words in them.

Texts come from environments, models, files and their names, so they may hold anything.
"""

from __future__ import annotations

import re
import reprlib
from functools import lru_cache

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_WITHOUT_PICTURE = (
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
"""Delete and the C1 controls, changes of direction, separators of lines, unpaired surrogates."""
_TABLE = {**_PICTURES, **dict.fromkeys(_WITHOUT_PICTURE, 0xFFFD)}
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_WORD = re.compile(r"[^\W_]+")


def visible(text: str) -> str:
    """Replace every character that a terminal or a browser would obey; newlines and tabs stay."""
    return text.translate(_TABLE)


def visible_line(text: str) -> str:
    """Do as ``visible``, and put the text on one line: newlines are shown as well, and tabs are spaces."""
    return visible(text.expandtabs(4)).replace("\n", "\u240a")


def shown(value: object) -> str:
    """Return the ``repr`` of a value as messages show it: not at any length."""
    return _REPR.repr(value)


def shortened(text: str, max_chars: int) -> str:
    """Cut a text that has more than ``max_chars`` characters, which then ends in dots."""
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."


def first_line(error: BaseException, max_chars: int = 300) -> str:
    """Return the first line of an error's message, without the end of its sentence; "" where it says nothing."""
    line = next(iter(str(error).splitlines()), "")
    return line[:max_chars].rstrip(" .:")


@lru_cache(maxsize=4096)
def words(text: str) -> str:
    """Return the words of ``text`` in lower case, with one space before, between and after them."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def holds(text: str, phrase: str) -> bool:
    """Return whether ``text`` has the words of ``phrase`` one after the other; no text holds a phrase without words."""
    wanted = words(phrase)
    return bool(wanted.strip()) and wanted in words(text)
