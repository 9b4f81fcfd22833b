"""Text that came from environments, models, files and their names, made safe to show: it may hold anything."""

from __future__ import annotations

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_WITHOUT_PICTURE = (
    *range(0x7F, 0xA0),
    *(0x061C, 0x200E, 0x200F, 0x2028, 0x2029),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
"""Delete and the C1 controls, changes of direction, separators of lines, lone surrogates."""
_TABLE = {**_PICTURES, **dict.fromkeys(_WITHOUT_PICTURE, 0xFFFD)}


def visible(text: str) -> str:
    """``text`` without any character that a terminal or a browser would obey; newlines and tabs stay."""
    return text.translate(_TABLE)


def visible_line(text: str) -> str:
    """``text`` without any such character, on one line: newlines are shown as well, and tabs are spaces."""
    return visible(text.expandtabs(4)).replace("\n", "\u240a")
