"""Learning curves as inline SVG: one panel a quantity, one colour a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from reflectrl.report.arms import smoothed
from reflectrl.report.escape import escaped
from reflectrl.report.runs import Point, Run
from reflectrl.rollout.metrics import wilson_interval

_WIDTH, _HEIGHT = 360, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 350, 18, 192
_MOST = 400
"""Points drawn of one line; longer runs are thinned out."""

Values = Callable[[Run], list[float | None]]
SUCCESS = "success rate"
_PANELS: tuple[tuple[str, bool, Values], ...] = (
    (SUCCESS, True, lambda run: [point.success for point in run.points]),
    ("return", False, lambda run: [point.episode_return for point in run.points]),
    ("entropy, nats a step", False, lambda run: [point.entropy for point in run.points]),
    ("steps an episode", False, lambda run: [point.length for point in run.points]),
    ("reflections from the cache", True, lambda run: [pace.reflection_hit_rate or None for pace in run.paces]),
    ("environment steps a second", False, lambda run: [pace.steps_per_second for pace in run.paces]),
)
"""Title, whether it is a fraction, and its values, one an iteration."""


@dataclass(frozen=True)
class _Line:
    """One quantity of one run."""

    number: int
    """Of the run."""
    run: Run
    points: Sequence[Point]
    values: Sequence[float]


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


def window(points: Sequence[Point]) -> int:
    """Iterations that a running mean covers: a twentieth of the run, at least 5."""
    return max(5, len(points) // 20)


def running_mean(points: Sequence[Point], values: Sequence[float]) -> list[float]:
    """Mean of the last ``window`` of ``values`` at each point; anew with each stage."""
    width = window(points)
    return [mean for stage in _stages(points) for mean in smoothed(values[stage.start : stage.stop], width)]


def success_band(run: Run) -> list[tuple[float, float]]:
    """95 % Wilson interval of the running mean of the success rate, each episode taken for a trial."""
    means, width = running_mean(run.points, [point.success for point in run.points]), window(run.points)
    seen = [min(width, place + 1) for stage in _stages(run.points) for place in range(len(stage))]
    return [
        wilson_interval(min(1.0, max(0.0, mean)), count * run.episodes) for mean, count in zip(means, seen, strict=True)
    ]


def _stages(points: Sequence[Point]) -> Iterator[range]:
    """The places of each stage's points."""
    begin = 0
    for _, stage in groupby(points, key=lambda point: point.stage):
        end = begin + sum(1 for _ in stage)
        yield range(begin, end)
        begin = end


def colour(number: int) -> str:
    """CSS classes of the ``number``-th run: eight colours, then the same again with dashes."""
    return f"c{number % 8}" + (" dashed" if number >= 8 else "")


def curves(runs: Sequence[Run]) -> str:
    """The legend and all panels; empty where no run has trained."""
    trained = [(number, run) for number, run in enumerate(runs) if run.points]
    if not trained:
        return ""
    legend = "".join(f'<li class="swatch {colour(number)}">{escaped(run.name, 200)}</li>' for number, run in trained)
    panels = "".join(_panel(title, fraction, values, trained) for title, fraction, values in _PANELS)
    return f'<ul class="legend">{legend}</ul><div class="panels">{panels}</div>'


def _panel(title: str, fraction: bool, values_of: Values, runs: Sequence[tuple[int, Run]]) -> str:
    """One figure; nothing where no run has the quantity."""
    lines = []
    for number, run in runs:
        # a throughput file may be shorter, or lack what is newer
        pairs = [(point, value) for point, value in zip(run.points, values_of(run), strict=False) if value is not None]
        if pairs:
            lines.append(_Line(number, run, [point for point, _ in pairs], [value for _, value in pairs]))
    values = [value for line in lines for value in line.values]
    if not values:
        return ""
    iterations = [point.iteration for line in lines for point in line.points]
    low, high = (0.0, 1.0) if fraction else (min(values), max(values))
    room = 0.0 if high - low > 1e-9 else 0.5
    axes = _Axes(min(iterations), max(max(iterations), min(iterations) + 1), low - room, high + room)
    starts = {start: None for line in lines for start in _stage_starts(line.points)}
    drawn = (_drawn(axes, line, band=title == SUCCESS) for line in lines)
    return (
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{title} by iteration">{"".join((*_grid(axes), *(_stage(axes, *s) for s in starts), *drawn))}'
        "</svg></figure>"
    )


def _drawn(axes: _Axes, line: _Line, *, band: bool) -> str:
    shade = _band(axes, line.run) if band and line.run.episodes > 0 else ""
    return (
        f'<g class="{colour(line.number)}"><title>{escaped(line.run.name, 200)}</title>{shade}'
        f'<path class="raw" d="{_path(axes, line.points, line.values)}"/>'
        f'<path class="mean" d="{_path(axes, line.points, running_mean(line.points, line.values))}"/></g>'
    )


def _band(axes: _Axes, run: Run) -> str:
    lows, highs = zip(*success_band(run), strict=True)
    there, back = _places(axes, run.points, highs), _places(axes, run.points, lows)[::-1]
    return f'<path class="band" d="M{"L".join(there + back)}Z"/>'


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


def _places(axes: _Axes, points: Sequence[Point], values: Sequence[float]) -> list[str]:
    """Where the values lie; of a long line some, the last one always among them."""
    stride = math.ceil(len(points) / _MOST)
    kept = [*zip(points, values, strict=True)][::-stride][::-1]
    return [f"{axes.x(point.iteration):.1f} {axes.y(value):.1f}" for point, value in kept]


def _path(axes: _Axes, points: Sequence[Point], values: Sequence[float]) -> str:
    """The ``d`` of a path through the values; a single one becomes a dot."""
    places = _places(axes, points, values)
    return "M" + "L".join(places if len(places) > 1 else places * 2)
