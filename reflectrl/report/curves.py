"""Learning curves as inline SVG: one panel a metric, one colour a run, or the runs of a recipe with other seeds.

Drawn by hand because a report needs no package that is not installed with the library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from reflectrl.core.metric import Metric, metrics_of
from reflectrl.core.text import visible_line
from reflectrl.report.compare import group_runs
from reflectrl.report.markup import escaped
from reflectrl.report.runs import RunData
from reflectrl.report.series import (
    EXACT,
    lessons,
    mean_interval,
    measured_from_start,
    running_mean,
    success_band,
    window,
)
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
    unit: str = "iteration"
    """What the horizontal axis counts."""

    @classmethod
    def around(
        cls, iterations: Sequence[int], values: Sequence[float], metric: Metric, unit: str = "iteration"
    ) -> Axes:
        """Return axes on which the values lie; a constant has 0 on its axis, because it has no other scale."""
        low, high = (0.0, 1.0) if metric.fraction else (min(values), max(values))
        size = max(-low, high, 0.0)
        if high - low <= max(1e-9 * size, _SMALLEST):
            if size <= _SMALLEST:
                low, high = 0.0 if metric.low == 0 else -1.0, 1.0
            else:
                low, high = (0.0, 2 * size) if high > 0 else (-2 * size, 0.0)
        return cls(min(iterations), max(max(iterations), min(iterations) + 1), low, high, metric.fraction, unit)

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
                drawn.append(
                    f'<text class="tick" x="{middle:.1f}" y="{BOTTOM + 15}" text-anchor="middle">{label}</text>'
                )
        drawn.append(f'<text class="unit" x="{RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{self.unit}</text>')
        return "".join(drawn)

    def figure(self, title: str, inside: str) -> str:
        """Return the figure; curves.js reads values off it, and draws it over another horizontal axis."""
        scale = f"{self.first:g} {self.last:g} {self.low!r} {self.high!r} {self.left:.1f}"
        kind = ' data-fraction=""' if self.fraction else ""
        return (
            f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{title} by {self.unit}" data-scale="{scale}"{kind}>'
            f"{inside}</svg></figure>"
        )

    def lesson(self, iteration: int, name: str, following: int | None) -> str:
        """Return the mark of the beginning of a lesson, as SVG, with as much of its name as there is room for.

        Args:
            iteration: the first iteration of the lesson.
            name: its name.
            following: the first iteration of the next lesson; ``None`` for the last, whose name may be on the left.

        """
        x = self.x(iteration)
        room = (WIDTH if following is None else self.x(following)) - x
        before = following is None and room < min(90, text_width(visible_line(name)) + 5)
        place = f'x="{x - 3:.1f}" text-anchor="end"' if before else f'x="{x + 3:.1f}"'
        text = escaped(fitted(name, (x if before else room) - 5))
        return f'<path class="lesson" d="M{x:.1f} 6V{BOTTOM}"/><text {place} y="{TOP - 5}">{text}</text>'


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


@dataclass(frozen=True)
class _Seeds:
    """Runs that differ in the seed alone, or a single run."""

    title: str
    """Their name in the legend."""
    classes: str
    """CSS classes of their colour."""
    numbers: Sequence[int]


def colour(number: int) -> str:
    """Return the CSS classes of the ``number``-th line: eight colours, then the same again with dashes."""
    return f"c{number % 8}" + (" dashed" if number >= 8 else "")


def colours(runs: Sequence[RunData]) -> list[str]:
    """Return the CSS classes of each run's colour, which runs that differ in the seed alone share."""
    places = {id(run): place for place, group in enumerate(group_runs(runs).values()) for run in group}
    return [colour(places[id(run)]) for run in runs]


def curves(runs: Sequence[RunData]) -> str:
    """Return the legend and all panels; empty where no run has trained."""
    shown = [(number, run) for number, run in enumerate(runs) if run.points or run.sft]
    if not shown:
        return ""
    numbers, classes = {id(run): number for number, run in shown}, colours(runs)
    seeds = []
    for name, group in group_runs(runs).items():
        places = [numbers[id(run)] for run in group if id(run) in numbers]
        title = runs[places[0]].name if len(places) == 1 else f"{name}, {len(places)} runs"
        seeds += [_Seeds(title, classes[places[0]], places)] if places else []
    legend = "".join(f'<li class="swatch {each.classes}">{escaped(each.title, 200)}</li>' for each in seeds)
    trained = [(number, run) for number, run in shown if run.points]
    clocks = json.dumps({number: _clock(run) for number, run in trained}, separators=(",", ":"))
    names = sorted({name for _, run in trained for point in run.points for name in point.by_group})
    by_group = [(Iteration, name, _metric_of_group(*name.split("/", 1))) for name in names]
    drawn, zero = [], []
    for record, field, metric in (*PANELS, *by_group):
        lines = [line for number, run in trained if (line := _line(number, run, record, field)).points]
        if lines and _is_zero(field, metric, lines):
            zero.append(metric.title)
        elif lines:
            drawn.append(_panel(field, metric, lines, seeds))
    note = f'<p class="note">0 throughout, but for rounding, and not drawn: {", ".join(zero)}.</p>' if zero else ""
    fine_tuned = _sft_panels(shown, seeds)
    return (
        f'<ul class="legend">{legend}</ul><div class="panels">{"".join(drawn)}</div>{note}'
        f'<script type="application/json" id="clocks">{clocks}</script>'
        + (f'<h3>Supervised fine-tuning</h3><div class="panels">{fine_tuned}</div>' if fine_tuned else "")
    )


def _clock(run: RunData) -> list[tuple[int, int, float]]:
    """Return iteration, environment steps and minutes of training at its end; of a long run, of some iterations."""
    minutes = accumulate(pace.seconds / 60 for pace in run.paces)
    known = [(point.iteration, point.env_steps, round(at, 3)) for point, at in zip(run.points, minutes, strict=False)]
    return known[:: -math.ceil(len(known) / _MAX_POINTS) or -1][::-1]


_SFT_PANELS = {
    "held_out_loss": Metric("", "Loss of the {}"),
    "accuracy": Metric("", "Accuracy of the {}", fraction=True, low=0.0),
}


def _sft_panels(shown: Sequence[tuple[int, RunData]], seeds: Sequence[_Seeds]) -> str:
    """Return figures of the checks of each player: bold for held-out rows, faint for the loss in training."""
    drawn, colours = [], _colours(seeds)
    for player in ("reflector", "policy"):
        lines = [(number, run, checks) for number, run in shown if (checks := run.sft.get(player))]
        for field, metric in _SFT_PANELS.items() if lines else ():
            steps = [check.step for _, _, checks in lines for check in checks]
            raw = {
                number: [(check.step, check.loss) for check in checks if check.loss is not None]
                for number, _, checks in lines
                if field == "held_out_loss"
            }
            values = [getattr(check, field) for _, _, checks in lines for check in checks]
            values += [loss for pairs in raw.values() for _, loss in pairs]
            axes = Axes.around(steps, values, metric, "step")
            inside = axes.grid()
            for number, run, checks in lines:
                held_out = _path(axes, [check.step for check in checks], [getattr(check, field) for check in checks])
                pairs = raw.get(number)
                faint = f'<path class="raw" d="{_path(axes, *zip(*pairs, strict=True))}"/>' if pairs else ""
                inside += _group(number, colours[number], run.name, f'{faint}<path class="mean" d="{held_out}"/>')
            drawn.append(axes.figure(metric.title.format(player), inside))
    return "".join(drawn)


def _group(number: int, classes: str, name: str, paths: str) -> str:
    return f'<g class="{classes}" data-run="{number}"><title>{escaped(name, 200)}</title>{paths}</g>'


def _colours(seeds: Sequence[_Seeds]) -> dict[int, str]:
    """Return the CSS classes of each run's colour, which runs that differ in the seed alone share."""
    return {number: each.classes for each in seeds for number in each.numbers}


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


def _panel(field: str, metric: Metric, lines: Sequence[_Line], seeds: Sequence[_Seeds]) -> str:
    """Return one figure: a bold line with its band for each run, or for the mean of runs that differ in the seed."""
    iterations = [point.iteration for line in lines for point in line.points]
    axes = Axes.around(iterations, [value for line in lines for value in line.values], metric)
    starts: dict[tuple[int, str], None] = {}  # of each lesson, in runs of several
    for line in lines:
        begun = [(line.points[places.start].iteration, name) for name, places in lessons(line.points)]
        starts |= dict.fromkeys(begun if len(begun) > 1 else [])
    ordered = sorted(starts)
    following = [*(iteration for iteration, _ in ordered[1:]), None]
    marks = (axes.lesson(*start, after) for start, after in zip(ordered, following, strict=False))
    by_number, drawn = {line.number: line for line in lines}, list[str]()
    for each in seeds:
        own = [by_number[number] for number in each.numbers if number in by_number]
        if len(own) == 1:
            drawn.append(_drawn(axes, own[0], field, each.classes))
        elif own:
            drawn += _drawn_over_seeds(axes, own, field, each)
    return axes.figure(metric.title, "".join((axes.grid(), *marks, *drawn)))


def _window(line: _Line, field: str) -> int:
    return 1 if field in EXACT else window(len(line.run.points))


def _steady(line: _Line, field: str) -> dict[int, float]:
    """Return the running mean of a metric by iteration."""
    means = running_mean(line.points, line.values, _window(line, field))
    return {point.iteration: mean for point, mean in zip(line.points, means, strict=True)}


def _drawn_over_seeds(axes: Axes, lines: Sequence[_Line], field: str, seeds: _Seeds) -> Iterator[str]:
    """Yield the faint lines of the runs, and the mean of those that have a value, with its 95 % t interval.

    Over another horizontal axis, the mean stands where the longest run was.
    """
    classes, known = seeds.classes, [_steady(line, field) for line in lines]
    for line, means in zip(lines, known, strict=True):
        path = _path(axes, [*means], [*means.values()])
        yield _group(line.number, classes, line.run.name, f'<path class="raw" d="{path}"/>')
    every = sorted({iteration for means in known for iteration in means})
    found = [mean_interval([means[iteration] for means in known if iteration in means]) for iteration in every]
    bold = _path(axes, every, [mean for mean, _ in found])
    several = [(at, mean, half) for at, (mean, half) in zip(every, found, strict=True) if half is not None]
    ends = [[max(axes.low, min(axes.high, mean + sign * half)) for _, mean, half in several] for sign in (1, -1)]
    there, back = (_places(axes, [at for at, _, _ in several], end) for end in ends)
    shade = f'<path class="band" d="M{"L".join(there + back[::-1])}Z"/>' if several else ""
    longest = max(lines, key=lambda line: line.points[-1].iteration)
    yield _group(longest.number, classes, seeds.title, f'{shade}<path class="mean" d="{bold}"/>')


def _drawn(axes: Axes, line: _Line, field: str, classes: str) -> str:
    shade, width = "", _window(line, field)
    if field == "success" and line.run.episodes > 0:
        lows, highs = zip(*success_band(line.run), strict=True)
        every = [point.iteration for point in line.run.points]
        there, back = _places(axes, every, highs), _places(axes, every, lows)[::-1]
        shade = f'<path class="band" d="M{"L".join(there + back)}Z"/>'
    iterations = [point.iteration for point in line.points]
    raw = f'<path class="raw" d="{_path(axes, iterations, line.values)}"/>' if width > 1 else ""
    mean = _path(axes, iterations, running_mean(line.points, line.values, width))
    return _group(line.number, classes, line.run.name, f'{shade}{raw}<path class="mean" d="{mean}"/>')


def _places(axes: Axes, at: Sequence[float], values: Sequence[float]) -> list[str]:
    """Return the positions of the values on the panel; a long line is thinned out, its last value kept."""
    stride = math.ceil(len(at) / _MAX_POINTS)
    kept = [*zip(at, values, strict=True)][::-stride][::-1]
    return [f"{axes.x(place):.1f} {axes.y(value):.1f}" for place, value in kept]


def _path(axes: Axes, at: Sequence[float], values: Sequence[float]) -> str:
    """Return the ``d`` of an SVG path through the values; a single value becomes a dot."""
    places = _places(axes, at, values)
    return "M" + "L".join(places if len(places) > 1 else places * 2)
