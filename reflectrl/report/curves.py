"""Learning curves as inline SVG: one panel a quantity, one colour a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from reflectrl.report.escape import escaped
from reflectrl.report.runs import Point, Run

_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 350, 18, 192
_MOST = 400
"""Points drawn of one line; longer runs are thinned out."""

Value = Callable[[Point], float]
_PANELS: tuple[tuple[str, Value], ...] = (
    ("success rate", lambda point: point.success),
    ("return", lambda point: point.episode_return),
    ("entropy, nats a step", lambda point: point.entropy),
)


@dataclass(frozen=True)
class _Axes:
    """From values to places on the panel."""

    first: float
    last: float
    low: float
    high: float

    def x(self, iteration: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (iteration - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self.low) / (self.high - self.low)


def running_mean(points: Sequence[Point], value: Value) -> list[float]:
    """Mean of the last twentieth of the run, at least 5 iterations, at each point; anew with each stage."""
    width, means = max(5, len(points) // 20), []
    for _, stage in groupby(points, key=lambda point: point.stage):
        values = [value(point) for point in stage]
        means += [fmean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]
    return means


def colour(number: int) -> str:
    """CSS classes of the ``number``-th run: eight colours, then the same again with dashes."""
    return f"c{number % 8}" + (" dashed" if number >= 8 else "")


def curves(runs: Sequence[Run]) -> str:
    """The legend and all panels; empty where no run has trained."""
    trained = [(number, run) for number, run in enumerate(runs) if run.points]
    if not trained:
        return ""
    legend = "".join(f'<li class="swatch {colour(number)}">{escaped(run.name, 200)}</li>' for number, run in trained)
    panels = "".join(_panel(title, value, trained) for title, value in _PANELS)
    return f'<ul class="legend">{legend}</ul><div class="panels">{panels}</div>'


def _panel(title: str, value: Value, runs: Sequence[tuple[int, Run]]) -> str:
    points = [point for _, run in runs for point in run.points]
    values, iterations = [value(point) for point in points], [point.iteration for point in points]
    low, high = (0.0, 1.0) if title == "success rate" else (min(values), max(values))
    room = 0.0 if high - low > 1e-9 else 0.5
    axes = _Axes(min(iterations), max(max(iterations), min(iterations) + 1), low - room, high + room)
    starts = {start: None for _, run in runs for start in _stage_starts(run.points)}
    lines = (
        f'<g class="{colour(number)}"><title>{escaped(run.name, 200)}</title>'
        f'<path class="raw" d="{_line(axes, run.points, [value(point) for point in run.points])}"/>'
        f'<path class="mean" d="{_line(axes, run.points, running_mean(run.points, value))}"/></g>'
        for number, run in runs
    )
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title} by iteration">{"".join((*_grid(axes), *(_stage(axes, *s) for s in starts), *lines))}'
        "</svg></figure>"
    )


def _ticks(low: float, high: float) -> Iterator[float]:
    """A few round numbers from ``low`` to ``high``."""
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


def _stage_starts(points: Sequence[Point]) -> list[tuple[int, str]]:
    """Where each stage begins; nothing for a run of one stage."""
    starts = [(next(stage).iteration, name) for name, stage in groupby(points, key=lambda point: point.stage)]
    return starts if len(starts) > 1 else []


def _stage(axes: _Axes, iteration: int, name: str) -> str:
    x = axes.x(iteration)
    place = f'x="{x + 3:.1f}"' if x < _RIGHT - 90 else f'x="{x - 3:.1f}" text-anchor="end"'
    return f'<path class="stage" d="M{x:.1f} 6V{_BOTTOM}"/><text {place} y="{_TOP - 5}">{escaped(name, 20)}</text>'


def _line(axes: _Axes, points: Sequence[Point], values: Sequence[float]) -> str:
    """The ``d`` of a path through the values, the last one always among them; a single one becomes a dot."""
    stride = math.ceil(len(points) / _MOST)
    kept = [*zip(points, values, strict=True)][::-stride][::-1]
    places = [f"{axes.x(point.iteration):.1f} {axes.y(value):.1f}" for point, value in kept]
    return "M" + "L".join(places if len(places) > 1 else places * 2)
