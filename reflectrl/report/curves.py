"""Learning curves as inline SVG: one panel a metric, one colour a run.

Drawn by hand because a report needs no package that is not installed with the library.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reflectrl.core.metric import Metric, metrics_of
from reflectrl.report.axes import HEIGHT, WIDTH, Axes
from reflectrl.report.markup import escaped
from reflectrl.report.runs import Run
from reflectrl.report.series import EXACT, measured_from_start, running_mean, stages, success_band, window
from reflectrl.rollout.iteration import Iteration, Throughput

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
    run: Run
    points: Sequence[Iteration]
    values: Sequence[float]


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


def _line(number: int, run: Run, record: type[Any], field: str) -> _Line:
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
