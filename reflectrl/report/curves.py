"""Learning curves as inline SVG: one panel a metric, one colour a run.

Drawn by hand because a report needs no package that is not installed with the library; matplotlib is an extra.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reflectrl.report.markup import escaped
from reflectrl.report.runs import Run
from reflectrl.report.series import measurements, running_mean, stages, success_band, window
from reflectrl.rollout.iteration import Iteration, Throughput
from reflectrl.rollout.metrics import Metric, metrics_of

_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 350, 18, 192
_MAX_POINTS = 400
"""Maximum number of points drawn of a line; longer runs are thinned out."""

PANELS = tuple(
    (record, field, metric)
    for record in (Iteration, Throughput)
    for field, metric in metrics_of(record).items()
    if metric.panel
)
"""The metrics that are drawn, with the records and fields that hold them."""


@dataclass(frozen=True)
class _Line:
    """One metric of one run, without the iterations that did not record it."""

    number: int
    run: Run
    points: Sequence[Iteration]
    values: Sequence[float]


@dataclass(frozen=True)
class _Axes:
    """Map from values to positions on the panel."""

    first: float
    last: float
    low: float
    high: float

    def x(self, iteration: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (iteration - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self.low) / (self.high - self.low)


def colour(number: int) -> str:
    """Return the CSS classes of the ``number``-th run: eight colours, then the same again with dashes."""
    return f"c{number % 8}" + (" dashed" if number >= 8 else "")


def curves(runs: Sequence[Run]) -> str:
    """Return the legend and all panels; empty where no run has trained."""
    trained = [(number, run) for number, run in enumerate(runs) if run.points]
    if not trained:
        return ""
    legend = "".join(f'<li class="swatch {colour(number)}">{escaped(run.name, 200)}</li>' for number, run in trained)
    names = sorted({name for _, run in trained for point in run.points for name in point.by_group})
    by_group = [(Iteration, name, _metric_of_group(*name.split("/", 1))) for name in names]
    panels = "".join(_panel(*panel, trained) for panel in (*PANELS, *by_group))
    return f'<ul class="legend">{legend}</ul><div class="panels">{panels}</div>'


def _metric_of_group(field: str, group: str) -> Metric:
    return Metric(group, f"{metrics_of(Iteration)[field].title} of {escaped(group, 40)}", fraction=True)


def _line(number: int, run: Run, record: type[Any], field: str) -> _Line:
    """Return one run's metric; a file of throughputs may be shorter than the file of metrics."""
    if record is Throughput:
        paces = [float(getattr(pace, field)) for pace in run.paces]
        pairs = [pair for pair in zip(run.points, paces, strict=False) if not math.isnan(pair[1])]
        known = pairs if any(value for _, value in pairs) else []  # all 0 without a cache, for example
    else:
        known = measurements(run.points, field)
    return _Line(number, run, [point for point, _ in known], [value for _, value in known])


def _panel(record: type[Any], field: str, metric: Metric, runs: Sequence[tuple[int, Run]]) -> str:
    """Return one figure; empty if no run has the metric."""
    lines = [line for number, run in runs if (line := _line(number, run, record, field)).points]
    if not lines:
        return ""
    iterations = [point.iteration for line in lines for point in line.points]
    values = [value for line in lines for value in line.values]
    low, high = (0.0, 1.0) if metric.fraction else (min(values), max(values))
    room = 0.0 if high - low > 1e-9 else 0.5
    axes = _Axes(min(iterations), max(max(iterations), min(iterations) + 1), low - room, high + room)
    starts: dict[tuple[int, str], None] = {}  # of each stage, in runs of several
    for line in lines:
        begun = [(line.points[places.start].iteration, name) for name, places in stages(line.points)]
        starts |= dict.fromkeys(begun if len(begun) > 1 else [])
    drawn = (_drawn(axes, line, band=field == "success" and line.run.episodes > 0) for line in lines)
    inside = "".join((*_grid(axes), *(_stage(axes, *start) for start in starts), *drawn))
    return (
        f'<figure><figcaption>{metric.title}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{metric.title} by iteration">{inside}</svg></figure>'
    )


def _drawn(axes: _Axes, line: _Line, *, band: bool) -> str:
    shade, width = "", window(len(line.run.points))
    if band:
        lows, highs = zip(*success_band(line.run), strict=True)
        there, back = _places(axes, line.run.points, highs), _places(axes, line.run.points, lows)[::-1]
        shade = f'<path class="band" d="M{"L".join(there + back)}Z"/>'
    return (
        f'<g class="{colour(line.number)}"><title>{escaped(line.run.name, 200)}</title>{shade}'
        f'<path class="raw" d="{_path(axes, line.points, line.values)}"/>'
        f'<path class="mean" d="{_path(axes, line.points, running_mean(line.points, line.values, width))}"/></g>'
    )


def _ticks(low: float, high: float) -> Iterator[float]:
    """Yield a few round numbers from ``low`` to ``high``."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 5)
    return (number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1))


def _grid(axes: _Axes) -> Iterator[str]:
    for value in _ticks(axes.low, axes.high):
        y = axes.y(value)
        yield f'<path class="grid" d="M{_LEFT} {y:.1f}H{_RIGHT}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>'
    for value in _ticks(axes.first, axes.last):
        if value.is_integer():
            yield f'<text x="{axes.x(value):.1f}" y="{_BOTTOM + 15}" text-anchor="middle">{value:.0f}</text>'
    yield f'<text x="{_RIGHT}" y="{_HEIGHT - 1}" text-anchor="end">iteration</text>'


def _stage(axes: _Axes, iteration: int, name: str) -> str:
    x = axes.x(iteration)
    place = f'x="{x + 3:.1f}"' if x < _RIGHT - 90 else f'x="{x - 3:.1f}" text-anchor="end"'
    return f'<path class="stage" d="M{x:.1f} 6V{_BOTTOM}"/><text {place} y="{_TOP - 5}">{escaped(name, 20)}</text>'


def _places(axes: _Axes, points: Sequence[Iteration], values: Sequence[float]) -> list[str]:
    """Return the positions of the values on the panel; a long line is thinned out, its last value kept."""
    stride = math.ceil(len(points) / _MAX_POINTS)
    kept = [*zip(points, values, strict=True)][::-stride][::-1]
    return [f"{axes.x(point.iteration):.1f} {axes.y(value):.1f}" for point, value in kept]


def _path(axes: _Axes, points: Sequence[Iteration], values: Sequence[float]) -> str:
    """Return the ``d`` of an SVG path through the values; a single value becomes a dot."""
    places = _places(axes, points, values)
    return "M" + "L".join(places if len(places) > 1 else places * 2)
