"""Learning curves as inline SVG: one panel a metric, one colour a run, or the runs of a recipe with other seeds.

Drawn by hand because a report needs no package that is not installed with the library.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, TypeAlias

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


_Pairs: TypeAlias = Sequence[tuple[float, float]]
"""Positions on the horizontal axis, with values."""


@dataclass(frozen=True)
class _Seeds:
    """Runs that differ in the seed alone, or a single run."""

    title: str
    """Their name in the legend."""
    classes: str
    """CSS classes of their colour."""
    runs: Mapping[int, RunData]
    """The runs by their numbers on the page."""


def colour(number: int) -> str:
    """Return the CSS classes of the ``number``-th line: eight colours, then the same again with dashes."""
    return f"c{number % 8}" + (" dashed" if number >= 8 else "")


def colours(runs: Sequence[RunData]) -> list[str]:
    """Return the CSS classes of each run's colour, which runs that differ in the seed alone share."""
    places = {id(run): place for place, group in enumerate(group_runs(runs).values()) for run in group}
    return [colour(places[id(run)]) for run in runs]


def curves(runs: Sequence[RunData]) -> str:
    """Return the legend and all panels; empty where no run has trained."""
    numbers = {id(run): number for number, run in enumerate(runs) if run.points or run.sft}
    if not numbers:
        return ""
    seeds = []
    for place, (name, group) in enumerate(group_runs(runs).items()):
        own = {numbers[id(run)]: run for run in group if id(run) in numbers}
        title = f"{name}, {len(own)} runs" if len(own) > 1 else "".join(run.name for run in own.values())
        seeds += [_Seeds(title, colour(place), own)] if own else []
    legend = "".join(f'<li class="swatch {each.classes}">{escaped(each.title, 200)}</li>' for each in seeds)
    trained = {number: runs[number] for number in numbers.values() if runs[number].points}
    clocks = json.dumps({number: _clock(run) for number, run in trained.items()}, separators=(",", ":"))
    names = sorted({name for run in trained.values() for point in run.points for name in point.by_group})
    by_group = [(Iteration, name, _metric_of_group(*name.split("/", 1))) for name in names]
    drawn, zero = [], []
    for record, field, metric in (*PANELS, *by_group):
        known = {number: pairs for number, run in trained.items() if (pairs := _measured(run, record, field))}
        if known and _is_zero(field, metric, [value for pairs in known.values() for _, value in pairs]):
            zero.append(metric.title)
        elif known:
            drawn.append(_panel(field, metric, known, seeds))
    note = f'<p class="note">0 throughout, but for rounding, and not drawn: {", ".join(zero)}.</p>' if zero else ""
    fine_tuned = _sft_panels(seeds)
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


def _sft_panels(seeds: Sequence[_Seeds]) -> str:
    """Return figures of the checks of each player: bold for held-out rows, faint for the loss in training."""
    drawn = []
    for player in ("reflector", "policy"):
        checked = [(each, number) for each in seeds for number, run in each.runs.items() if player in run.sft]
        for field, metric in _SFT_PANELS.items() if checked else ():
            lines = []
            for each, number in checked:
                checks = each.runs[number].sft[player]
                losses = [(check.step, check.loss) for check in checks if check.loss is not None]
                held_out = [(check.step, getattr(check, field)) for check in checks]
                lines.append((each, number, held_out, losses if field == "held_out_loss" else []))
            pairs = [pair for _, _, held_out, losses in lines for pair in (*held_out, *losses)]
            steps, measured = zip(*pairs, strict=True)
            axes = Axes.around(steps, measured, metric, "step")
            groups = (
                _group(axes, number, each.classes, each.runs[number].name, held_out, losses)
                for each, number, held_out, losses in lines
            )
            drawn.append(axes.figure(metric.title.format(player), "".join((axes.grid(), *groups))))
    return "".join(drawn)


def _metric_of_group(field: str, group: str) -> Metric:
    return Metric(field, f"{metrics_of(Iteration)[field].title} of {escaped(group, 40)}", fraction=True)


def _measured(run: RunData, record: type[Any], field: str) -> Sequence[tuple[Iteration, float]]:
    """Return one run's metric where it was recorded; a file of throughputs may be shorter than that of metrics."""
    if record is not Throughput:
        return measured_from_start(run.points, field)
    pairs = [(point, float(getattr(pace, field))) for point, pace in zip(run.points, run.paces, strict=False)]
    return pairs if any(value for _, value in pairs) else []  # all 0 without a cache, for example


def _is_zero(field: str, metric: Metric, values: Sequence[float]) -> bool:
    """Return whether an update measured nothing, as one pass over the samples does: its ratios are 1 by construction.

    That an outcome is always 0 is a result, and drawn.
    """
    tolerance = _ROUNDING if field.endswith("kl") else 0.0
    return metric.tracked.startswith("update/") and all(abs(value) <= tolerance for value in values)


def _panel(
    field: str, metric: Metric, known: Mapping[int, Sequence[tuple[Iteration, float]]], seeds: Sequence[_Seeds]
) -> str:
    """Return one figure: a bold line with its band for each run, or for the mean of runs that differ in the seed.

    Those runs are faint beside it. Over another horizontal axis, their mean stands where the longest of them was.
    """
    values = {number: [(point.iteration, value) for point, value in pairs] for number, pairs in known.items()}
    iterations, measured = zip(*chain(*values.values()), strict=True)
    axes = Axes.around(iterations, measured, metric)
    starts: dict[tuple[int, str], None] = {}  # of each lesson, in runs of several
    for pairs in known.values():
        points = [point for point, _ in pairs]
        begun = [(points[places.start].iteration, name) for name, places in lessons(points)]
        starts |= dict.fromkeys(begun if len(begun) > 1 else [])
    ordered = sorted(starts)
    following = [*(iteration for iteration, _ in ordered[1:]), None]
    drawn = [axes.grid(), *(axes.lesson(*start, after) for start, after in zip(ordered, following, strict=False))]
    for each in seeds:
        means = {number: _steady(run, known[number], field) for number, run in each.runs.items() if number in known}
        if len(means) == 1:
            [(number, mean)] = means.items()
            run, raw = each.runs[number], [] if field in EXACT else values[number]
            band = success_band(run) if field == "success" and run.episodes > 0 else []
            ends = [(point.iteration, *pair) for point, pair in zip(run.points, band, strict=False)]
            drawn.append(_group(axes, number, each.classes, run.name, mean, raw, ends))
        elif means:
            once = {number: [*dict(mean).items()] for number, mean in means.items()}  # a lesson's start comes twice
            drawn += (
                _group(axes, number, each.classes, each.runs[number].name, (), line) for number, line in once.items()
            )
            longest = max(once, key=lambda number: once[number][-1][0])
            over, spread = _over_seeds(axes, [*once.values()])
            drawn.append(_group(axes, longest, each.classes, each.title, over, band=spread))
    return axes.figure(metric.title, "".join(drawn))


def _steady(run: RunData, pairs: Sequence[tuple[Iteration, float]], field: str) -> _Pairs:
    """Return the running mean of a metric by iteration."""
    points, values = zip(*pairs, strict=True)
    means = running_mean(points, values, 1 if field in EXACT else window(len(run.points)))
    return [(point.iteration, mean) for point, mean in zip(points, means, strict=True)]


def _over_seeds(axes: Axes, lines: Sequence[_Pairs]) -> tuple[_Pairs, list[tuple[float, float, float]]]:
    """Return the mean of the lines that have a value, and the ends of its 95 % t interval, within the axes."""
    found: dict[float, list[float]] = defaultdict(list)
    for at, value in chain(*lines):
        found[at].append(value)
    means = [(at, *mean_interval(found[at])) for at in sorted(found)]
    ends = [
        (at, max(axes.low, mean - half), min(axes.high, mean + half)) for at, mean, half in means if half is not None
    ]
    return [(at, mean) for at, mean, _ in means], ends


def _group(
    axes: Axes,
    number: int,
    classes: str,
    name: str,
    mean: _Pairs = (),
    raw: _Pairs = (),
    band: Sequence[tuple[float, float, float]] = (),
) -> str:
    """Return the lines of a run: its mean, which is bold, each value, and the lower and upper ends of its band."""
    paths = ""
    if band:
        there, back = (_places(axes, [(end[0], end[side]) for end in band]) for side in (2, 1))
        paths = f'<path class="band" d="M{"L".join(there + back[::-1])}Z"/>'
    for kind, line in (("raw", raw), ("mean", mean)):
        places = _places(axes, line)
        dot = places if len(places) == 1 else []  # a line from a point to itself is a dot
        paths += f'<path class="{kind}" d="M{"L".join(places + dot)}"/>' if places else ""
    return f'<g class="{classes}" data-run="{number}"><title>{escaped(name, 200)}</title>{paths}</g>'


def _places(axes: Axes, line: _Pairs) -> list[str]:
    """Return the positions of a line on the panel; a long one is thinned out, its last value kept."""
    kept = line[:: -math.ceil(len(line) / _MAX_POINTS) or -1][::-1]
    return [f"{axes.x(at):.1f} {axes.y(value):.1f}" for at, value in kept]
