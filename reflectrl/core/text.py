"""Operations on texts: make them safe to show, shorten them, find words in them.

Texts come from environments, models, files and file names, so they may contain any character.
"""

from __future__ import annotations

import re
import reprlib
from functools import lru_cache

from reflectrl.core.foreign import message_of

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_WITHOUT_PICTURE = (
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
"""Characters without a visible symbol: delete and C1 controls, direction marks, line separators, lone surrogates."""
_TABLE = {**_PICTURES, **dict.fromkeys(_WITHOUT_PICTURE, 0xFFFD)}
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100
_WORD = re.compile(r"[^\W_]+")


def visible(text: str) -> str:
    """Replace every character that would control a terminal or a browser; newlines and tabs are kept."""
    return text if text.replace("\n", "").isprintable() else text.translate(_TABLE)


def visible_line(text: str) -> str:
    """Return ``visible(text)`` on one line: newlines become symbols, and tabs become spaces."""
    return visible(text.expandtabs(4)).replace("\n", "\u240a")


def shown(value: object) -> str:
    """Return the ``repr`` of a value, shortened for messages."""
    return _REPR.repr(value)


def shortened(text: str, max_chars: int, mark: str = "...") -> str:
    """Return ``text``, cut to ``max_chars`` characters that end in ``mark`` if it is longer."""
    return text if len(text) <= max_chars else f"{text[: max_chars - len(mark)]}{mark}"


def first_line(error: BaseException, max_chars: int = 300) -> str:
    """Return the first line of an error's message without its final punctuation; "" for an empty message."""
    line = next(iter(message_of(error).splitlines()), "")
    return line[:max_chars].rstrip(" .:")


@lru_cache(maxsize=4096)
def words(text: str) -> str:
    """Return the words of ``text`` in lower case, with one space before, between and after them."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def holds(text: str, phrase: str) -> bool:
    """Return whether ``text`` contains the words of ``phrase`` in a row; false for a phrase without words."""
    wanted = words(phrase)
    return bool(wanted.strip()) and wanted in words(text)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, ``1 step`` or ``2,000 steps``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(text: str) -> str:
    """Return a text on one line with single spaces, without control characters, some of which no file can hold."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())
