"""Texts that came from anywhere, as Markdown that shows them and does nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reflectrl.core.text import visible

_MAX_CHARACTERS = 2000
"""Characters shown of a text."""
_SPECIAL = str.maketrans(
    {**{char: f"\\{char}" for char in "\\`*_[]|~#$!"}, "<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}
)


def markdown(text: str) -> str:
    """``text`` on one line, escaped."""
    line = " ".join(visible(text).split())
    over = len(line) - _MAX_CHARACTERS
    return (line if over <= 0 else f"{line[:_MAX_CHARACTERS]} (and {over} more characters)").translate(_SPECIAL)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int) -> Iterator[str]:
    """The lines of a table; the first ``words`` columns hold words, the others numbers."""
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' if number < words else '---:' for number in range(len(columns)))} |"
    for row in rows:
        yield f"| {' | '.join(map(markdown, row))} |"
