"""Tables of the page."""

from __future__ import annotations

from collections.abc import Sequence


def table(
    label: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, main: Sequence[bool] = ()
) -> str:
    """A table that scrolls by itself where it is too wide.

    Args:
        label: description of the contents for readers that cannot see it.
        columns: their names, as HTML.
        rows: cells as HTML.
        words: so many columns, from the left, hold words; the others hold numbers.
        main: which rows stand out.

    """
    head = "".join(f'<th scope="col"{_side(at, words)}>{name}</th>' for at, name in enumerate(columns))
    marks = main or [False] * len(rows)
    body = "".join(
        f"<tr{' class=main' if mark else ''}>"
        + "".join(f"<td{_side(at, words)}>{cell}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for mark, row in zip(marks, rows, strict=True)
    )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{label}"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _side(column: int, words: int) -> str:
    return "" if column < words else ' class="number"'
