"""Text that came from environments and models, made safe to show: it may hold anything."""

from __future__ import annotations

import html

LONGEST = 4000
"""Characters that are shown of one text."""

_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_WITHOUT_PICTURE = (*range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))
"""Delete and the C1 controls, changes of direction, lone surrogates."""
_TABLE = {**_PICTURES, **dict.fromkeys(_WITHOUT_PICTURE, 0xFFFD)}


def visible(text: str) -> str:
    """``text`` without any character that a terminal or a browser would obey; newlines and tabs stay."""
    return text.translate(_TABLE)


def shortened(text: str, limit: int = LONGEST) -> str:
    """At most ``limit`` visible characters of ``text``, with a word about the others."""
    over = len(text) - limit
    return visible(text if over <= 0 else f"{text[:limit]} [{over} more characters]")


def escaped(text: str, limit: int = LONGEST) -> str:
    """``text`` as HTML that shows it and does nothing else; at most ``limit`` characters of it."""
    return html.escape(shortened(text, limit))
