"""Learning curves as inline SVG: one panel a metric, one colour a run.

Drawn by hand because a report needs no package that is not installed with the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from reflectrl.core.metric import Metric, metrics_of
from reflectrl.core.text import visible_line
from reflectrl.report.markup import escaped
from reflectrl.report.runs import RunData
from reflectrl.report.series import EXACT, measured_from_start, running_mean, stages, success_band, window
from reflectrl.rollout.iteration import Iteration, Throughput

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


_ROUNDING = 1e-6
"""Largest KL divergence in nats, of either sign, that is rounding of float32 and no change of the policy."""
_MAX_POINTS = 400
"""Maximum number of points drawn of a line; longer runs are thinned out."""

PANELS = tuple(
    (record, field, metric)
    for record in (Iteration, Throughput)
    for field, metric in metrics_of(record).items()
    if metric.title
)
"""The metrics that are drawn, with the records and fields that hold them."""


@dataclass(frozen=True)
class _Line:
    """One metric of one run, without the iterations that did not record it."""

    number: int
    run: RunData
    points: Sequence[Iteration]
    values: Sequence[float]


def colour(number: int) -> str:
    """Return the CSS classes of the ``number``-th run: eight colours, then the same again with dashes."""
    return f"c{number % 8}" + (" dashed" if number >= 8 else "")


def curves(runs: Sequence[RunData]) -> str:
    """Return the legend and all panels; empty where no run has trained."""
    trained = [(number, run) for number, run in enumerate(runs) if run.points]
    if not trained:
        return ""
    legend = "".join(f'<li class="swatch {colour(number)}">{escaped(run.name, 200)}</li>' for number, run in trained)
    names = sorted({name for _, run in trained for point in run.points for name in point.by_group})
    by_group = [(Iteration, name, _metric_of_group(*name.split("/", 1))) for name in names]
    drawn, zero = [], []
    for record, field, metric in (*PANELS, *by_group):
        lines = [line for number, run in trained if (line := _line(number, run, record, field)).points]
        if lines and _is_zero(field, metric, lines):
            zero.append(metric.title)
        elif lines:
            drawn.append(_panel(field, metric, lines))
    note = f'<p class="note">0 throughout, but for rounding, and not drawn: {", ".join(zero)}.</p>' if zero else ""
    return f'<ul class="legend">{legend}</ul><div class="panels">{"".join(drawn)}</div>{note}'


def _metric_of_group(field: str, group: str) -> Metric:
    return Metric(field, f"{metrics_of(Iteration)[field].title} of {escaped(group, 40)}", fraction=True)


def _line(number: int, run: RunData, record: type[Any], field: str) -> _Line:
    """Return one run's metric; a file of throughputs may be shorter than the file of metrics."""
    if record is Throughput:
        pairs = [(point, float(getattr(pace, field))) for point, pace in zip(run.points, run.paces, strict=False)]
        known = pairs if any(value for _, value in pairs) else []  # all 0 without a cache, for example
    else:
        known = measured_from_start(run.points, field)
    return _Line(number, run, [point for point, _ in known], [value for _, value in known])


def _is_zero(field: str, metric: Metric, lines: Sequence[_Line]) -> bool:
    """Return whether an update measured nothing, as one pass over the samples does: its ratios are 1 by construction.

    That an outcome is always 0 is a result, and drawn.
    """
    tolerance = _ROUNDING if field.endswith("kl") else 0.0
    return metric.tracked.startswith("update/") and all(
        abs(value) <= tolerance for line in lines for value in line.values
    )


def _panel(field: str, metric: Metric, lines: Sequence[_Line]) -> str:
    """Return one figure."""
    iterations = [point.iteration for line in lines for point in line.points]
    axes = Axes.around(iterations, [value for line in lines for value in line.values], metric)
    starts: dict[tuple[int, str], None] = {}  # of each stage, in runs of several
    for line in lines:
        begun = [(line.points[places.start].iteration, name) for name, places in stages(line.points)]
        starts |= dict.fromkeys(begun if len(begun) > 1 else [])
    ordered = sorted(starts)
    following = [*(iteration for iteration, _ in ordered[1:]), None]
    marks = (axes.stage(*start, after) for start, after in zip(ordered, following, strict=False))
    inside = "".join((axes.grid(), *marks, *(_drawn(axes, line, field) for line in lines)))
    return (
        f'<figure><figcaption>{metric.title}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{metric.title} by iteration">{inside}</svg></figure>'
    )


def _drawn(axes: Axes, line: _Line, field: str) -> str:
    shade, width = "", 1 if field in EXACT else window(len(line.run.points))
    if field == "success" and line.run.episodes > 0:
        lows, highs = zip(*success_band(line.run), strict=True)
        there, back = _places(axes, line.run.points, highs), _places(axes, line.run.points, lows)[::-1]
        shade = f'<path class="band" d="M{"L".join(there + back)}Z"/>'
    raw = f'<path class="raw" d="{_path(axes, line.points, line.values)}"/>' if width > 1 else ""
    return (
        f'<g class="{colour(line.number)}"><title>{escaped(line.run.name, 200)}</title>{shade}{raw}'
        f'<path class="mean" d="{_path(axes, line.points, running_mean(line.points, line.values, width))}"/></g>'
    )


def _places(axes: Axes, points: Sequence[Iteration], values: Sequence[float]) -> list[str]:
    """Return the positions of the values on the panel; a long line is thinned out, its last value kept."""
    stride = math.ceil(len(points) / _MAX_POINTS)
    kept = [*zip(points, values, strict=True)][::-stride][::-1]
    return [f"{axes.x(point.iteration):.1f} {axes.y(value):.1f}" for point, value in kept]


def _path(axes: Axes, points: Sequence[Iteration], values: Sequence[float]) -> str:
    """Return the ``d`` of an SVG path through the values; a single value becomes a dot."""
    places = _places(axes, points, values)
    return "M" + "L".join(places if len(places) > 1 else places * 2)
