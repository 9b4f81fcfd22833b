"""Foreign text in a report: cut, and as HTML."""

from __future__ import annotations

import html

from reflectrl.core.text import visible

MAX_CHARACTERS = 4000
"""Characters that are shown of one text."""


def shortened(text: str, limit: int = MAX_CHARACTERS) -> str:
    """At most ``limit`` visible characters of ``text``, with a word about the others."""
    over = len(text) - limit
    return visible(text if over <= 0 else f"{text[:limit]} [{over} more characters]")


def escaped(text: str, limit: int = MAX_CHARACTERS) -> str:
    """``text`` as HTML that shows it and does nothing else; at most ``limit`` characters of it."""
    return html.escape(shortened(text, limit))
