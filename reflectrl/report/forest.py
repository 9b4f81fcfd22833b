"""A forest plot as one SVG file: differences of success with their intervals, one below the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reflectrl.report.curves import fitted
from reflectrl.report.gain import Interval
from reflectrl.report.markup import escaped

_WIDTH, _ROW, _TOP, _LEFT, _RIGHT = 900, 24, 34, 400, 770
_STYLE = """\
.forest { --ink: #1f2430; --soft: #5b6478; --line: #c9cfdc; --good: #0b6e4f; --bad: #b42318; --open: #5b6478; }
@media (prefers-color-scheme: dark) {
.forest { --ink: #e6e9f2; --soft: #a4adc4; --line: #3a4358; --good: #52d6a0; --bad: #ff8f85; --open: #a4adc4; } }
.forest text { fill: var(--ink); font: 13px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; }
.forest .soft { fill: var(--soft); } .forest .end { text-anchor: end; } .forest .middle { text-anchor: middle; }
.forest path { stroke: var(--line); fill: none; } .forest .zero { stroke: var(--soft); }
.forest .holds { stroke: var(--good); fill: var(--good); stroke-width: 2; }
.forest .not { stroke: var(--bad); fill: var(--bad); stroke-width: 2; }
.forest .open { stroke: var(--open); fill: var(--open); stroke-width: 2; }"""
_CLASSES = {"holds": "holds", "does not hold": "not"}


@dataclass(frozen=True)
class ForestRow:
    """One difference of the plot."""

    label: str
    condition: str
    """Where it was measured, beside the label."""
    difference: Interval
    verdict: str
    """Shown on the right; ``holds`` and ``does not hold`` have colours of their own."""


def forest(rows: Sequence[ForestRow], title: str) -> str:
    """Return the plot as the text of an SVG file, which follows the reader's light or dark scheme.

    Args:
        rows: at least one, from the top.
        title: what the differences are, for readers that cannot see them.

    """
    low = min(0.0, *(row.difference.low for row in rows))
    high = max(0.0, *(row.difference.high for row in rows))
    apart = 1 if high - low <= 0.8 else 2  # tenths between two lines of the scale
    first = apart * math.floor(10 * low / apart)
    last = max(apart * math.ceil(10 * high / apart), first + apart)
    bottom = _TOP + _ROW * len(rows)

    def x(value: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (value - first / 10) / ((last - first) / 10)

    drawn = []
    for tenth in range(first, last + 1, apart):
        at, label = f"{x(tenth / 10):.1f}", f"{10 * tenth:+d}" if tenth else "0"
        kind = "" if tenth else ' class="zero"'
        drawn.append(f'<path{kind} d="M{at} {_TOP - 10}V{bottom}"/>')
        drawn.append(f'<text class="soft middle" x="{at}" y="{_TOP - 16}">{label}</text>')
    for number, row in enumerate(rows):
        y = _TOP + _ROW * number + _ROW / 2
        kind = _CLASSES.get(row.verdict, "open")
        name = f'{escaped(fitted(row.label, 200))} <tspan class="soft">{escaped(fitted(row.condition, 180))}</tspan>'
        interval = row.difference
        drawn += [
            f'<text class="end" x="{_LEFT - 10}" y="{y + 4:.1f}">{name}</text>',
            f'<path class="{kind}" d="M{x(interval.low):.1f} {y:.1f}H{x(interval.high):.1f}"/>',
            f'<circle class="{kind}" cx="{x(interval.mean):.1f}" cy="{y:.1f}" r="4"/>',
            f'<text x="{_RIGHT + 14}" y="{y + 4:.1f}">{escaped(row.verdict)}</text>',
        ]
    height = bottom + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="forest" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}">\n<title>{escaped(title)}</title>\n<style>\n{_STYLE}\n</style>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )
