"""Parts of the page: foreign texts as HTML that only shows them, and tables."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from importlib.resources import files

from reflectrl.core.text import visible

MAX_CHARACTERS = 4000
"""Characters that are shown of one text."""


def asset(name: str) -> str:
    """Return the text of a file in the folder of this module."""
    return files("reflectrl.report").joinpath(name).read_text(encoding="utf-8")


def excerpt(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return at most ``limit`` visible characters of ``text``, and the number of the others."""
    over = len(text) - limit
    return visible(text if over <= 0 else f"{text[:limit]} [{over} more characters]")


def escaped(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return at most ``limit`` characters of ``text`` as HTML."""
    return html.escape(excerpt(text, limit))


def prose(sentence: str) -> str:
    """Return a sentence as HTML, with commands between backticks set as such and no number apart from its "%"."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escaped(sentence)).replace(" %", "\u00a0%")


def table(
    label: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, main: Sequence[bool] = ()
) -> str:
    """Return a table that scrolls by itself where it is too wide; its first column stays.

    Args:
        label: description of the contents for readers that cannot see it.
        columns: their names, as HTML.
        rows: cells as HTML.
        words: number of columns, from the left, that hold words; the others hold numbers.
        main: True for the rows that stand out.

    """
    sides = ["" if at < words else ' class="number"' for at in range(len(columns))]
    head = "".join(f'<th scope="col"{side}>{name}</th>' for side, name in zip(sides, columns, strict=True))
    body = "".join(
        f"<tr{' class=main' if mark else ''}>"
        + "".join(f"<td{side}>{cell}</td>" for side, cell in zip(sides, row, strict=True))
        + "</tr>"
        for mark, row in zip(main or [False] * len(rows), rows, strict=True)
    )
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{label}"><table class="rows">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
