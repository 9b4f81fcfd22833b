"""Axes of the report's curves: the range that is drawn, round numbers on it, and texts that stay inside the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from reflectrl.core.metric import Metric
from reflectrl.core.text import visible_line
from reflectrl.report.markup import escaped

WIDTH, HEIGHT = 360, 226
RIGHT, TOP, BOTTOM = 350, 18, 192
_NARROW = frozenset("0123456789abcdefghijklnopqrstuvxyz .,-_:/()'")
_SMALLEST = 1e-300  # differences below cannot be divided into ticks


def text_width(text: str) -> float:
    """Return how wide ``text`` is at most in the picture, in the widest of the common fonts."""
    return sum(7.1 if letter in _NARROW else 11.0 if letter.isascii() else 15.0 for letter in text)


def fitted(text: str, room: float) -> str:
    """Return ``text`` on one line, cut so that it is at most ``room`` wide."""
    line = visible_line(text)
    if text_width(line) <= room:
        return line
    kept = next(n for n in range(len(line), -1, -1) if n == 0 or text_width(line[:n] + "…") <= room)
    return f"{line[:kept]}…"


@dataclass(frozen=True)
class Axes:
    """Map from values to positions on the panel."""

    first: float
    last: float
    low: float
    high: float
    fraction: bool = False
    """True if the values are fractions, whose labels are in per cent."""

    @classmethod
    def around(cls, iterations: Sequence[int], values: Sequence[float], metric: Metric) -> Axes:
        """Return axes on which the values lie; a constant has 0 on its axis, because it has no other scale."""
        low, high = (0.0, 1.0) if metric.fraction else (min(values), max(values))
        size = max(-low, high, 0.0)
        if high - low <= max(1e-9 * size, _SMALLEST):
            if size <= _SMALLEST:
                low, high = 0.0 if metric.low == 0 else -1.0, 1.0
            else:
                low, high = (0.0, 2 * size) if high > 0 else (-2 * size, 0.0)
        return cls(min(iterations), max(max(iterations), min(iterations) + 1), low, high, metric.fraction)

    @cached_property
    def labels(self) -> list[tuple[float, str]]:
        """Values on the left, with their texts."""
        return _labelled(self.low, self.high, self.fraction)

    @cached_property
    def left(self) -> float:
        """Left end of the lines: the longest label fits beside it."""
        return 10 + max(32.0, *(text_width(label) for _, label in self.labels))

    def x(self, iteration: float) -> float:
        """Return the horizontal position of an iteration."""
        return self.left + (RIGHT - self.left) * (iteration - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return BOTTOM - (BOTTOM - TOP) * (value - self.low) / (self.high - self.low)

    def grid(self) -> str:
        """Return the lines and labels of the panel, as SVG."""
        drawn = [
            f'<path class="grid" d="M{self.left:.1f} {self.y(value):.1f}H{RIGHT}"/>'
            f'<text x="{self.left - 6:.1f}" y="{self.y(value) + 4:.1f}" text-anchor="end">{label}</text>'
            for value, label in self.labels
        ]
        for value, label in _labelled(self.first, self.last):
            if value.is_integer():
                middle = min(self.x(value), WIDTH - text_width(label) / 2)
                drawn.append(f'<text x="{middle:.1f}" y="{BOTTOM + 15}" text-anchor="middle">{label}</text>')
        drawn.append(f'<text x="{RIGHT}" y="{HEIGHT - 6}" text-anchor="end">iteration</text>')
        return "".join(drawn)

    def stage(self, iteration: int, name: str, following: int | None) -> str:
        """Return the mark of the beginning of a stage, as SVG, with as much of its name as there is room for.

        Args:
            iteration: the first iteration of the stage.
            name: its name.
            following: the first iteration of the next stage; ``None`` for the last, whose name may be on the left.

        """
        x = self.x(iteration)
        room = (WIDTH if following is None else self.x(following)) - x
        before = following is None and room < min(90, text_width(visible_line(name)) + 5)
        place = f'x="{x - 3:.1f}" text-anchor="end"' if before else f'x="{x + 3:.1f}"'
        text = escaped(fitted(name, (x if before else room) - 5))
        return f'<path class="stage" d="M{x:.1f} 6V{BOTTOM}"/><text {place} y="{TOP - 5}">{text}</text>'


def _labelled(low: float, high: float, fraction: bool = False) -> list[tuple[float, str]]:
    """Return a few round numbers from ``low`` to ``high``, with texts that tell them apart."""
    power = math.floor(math.log10((high - low) / 4))
    step = next(step for factor in (1, 2, 5, 10) if (step := factor * 10.0**power) >= (high - low) / 5)
    power = math.floor(math.log10(step) + 1e-9)
    ticks = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    size = max(-low, high)
    if fraction:
        return [(value, f"{value:.0%}") for value in ticks]
    if 1e-4 <= size < 1e6:
        return [(value, f"{value:z,.{max(0, -power)}f}") for value in ticks]
    exponent = math.floor(math.log10(size))
    digits = max(0, exponent - power)
    return [(value, f"{value / 10.0**exponent:z.{digits}f}e{exponent}" if value else "0") for value in ticks]
