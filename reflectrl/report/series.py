"""Series of a metric over the iterations of RLFT: the numbers behind the curves of the report."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from reflectrl.report.runs import RunData
from reflectrl.rollout.iteration import Iteration, wilson_interval

EXACT = ("learning_rate", "entropy_coef")
"""Fields of ``Iteration`` that nothing is averaged over: their running mean would be a value that never held."""
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Quantiles from one degree of freedom on; scipy would be a dependency for these ten."""


def t95(samples: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for the mean of at least two samples."""
    return _T95[samples - 2] if samples - 2 < len(_T95) else 1.96 + 2.7 / (samples - 1)


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half of its 95 % t interval, which a single value does not have."""
    several = len(values) > 1
    half = float(t95(len(values)) * np.std(values, ddof=1) / len(values) ** 0.5) if several else None
    return float(np.mean(values)), half


def lessons(points: Sequence[Iteration]) -> list[tuple[str, range]]:
    """Return the name of each lesson of the curriculum and its indices in ``points``, in order."""
    found, begin = [], 0
    for name, group in groupby(points, key=lambda point: point.lesson):
        end = begin + sum(1 for _ in group)
        found.append((name, range(begin, end)))
        begin = end
    return found


_STARTS = {"validation_success": "validation_start", "validation_greedy": "validation_start_greedy"}
"""By field of a validation, the field with its value before the first iteration of a lesson."""


def measurements(points: Sequence[Iteration], field: str) -> list[tuple[Iteration, float]]:
    """Return the points with a value of ``field``, which may not be measured at each iteration.

    Args:
        points: the iterations of a run.
        field: a field of ``Iteration``, or one of the names in ``Iteration.by_group``.

    """
    pairs = ((point, point.by_group.get(field) if "/" in field else getattr(point, field)) for point in points)
    return [(point, float(value)) for point, value in pairs if value is not None]


def measured_from_start(points: Sequence[Iteration], field: str) -> list[tuple[Iteration, float]]:
    """Return ``measurements``, of a validation with those before the first iteration of a lesson, which comes twice."""
    starts = measurements(points, _STARTS[field]) if field in _STARTS else []
    return sorted([*starts, *measurements(points, field)], key=lambda pair: pair[0].iteration)


def window(iterations: int) -> int:
    """Return the width of a run's running mean: a twentieth of its iterations, at least 5."""
    return max(5, iterations // 20)


def running_mean(points: Sequence[Iteration], values: Sequence[float], width: int | None = None) -> list[float]:
    """Return the mean over the last ``width`` iterations at each point, restarted with each lesson.

    Args:
        points: iterations, among which some may be missing.
        values: the value of each point.
        width: number of iterations; by default ``window`` of the points.

    """
    width, numbers = width or window(len(points)), [point.iteration for point in points]
    return [
        sum(seen) / len(seen)
        for _, lesson in lessons(points)
        for place in lesson
        for seen in [values[bisect_right(numbers, numbers[place] - width, lesson.start, place) : place + 1]]
    ]


def success_band(run: RunData) -> list[tuple[float, float]]:
    """Return the 95 % Wilson interval of the success rate's running mean, with episodes as independent trials."""
    means, width = running_mean(run.points, [point.success for point in run.points]), window(len(run.points))
    seen = [min(width, place + 1) for _, lesson in lessons(run.points) for place in range(len(lesson))]
    return [
        wilson_interval(min(1.0, max(0.0, mean)), count * run.episodes) for mean, count in zip(means, seen, strict=True)
    ]


def steady_success(run: RunData) -> list[tuple[Iteration, float]]:
    """Return the success rate's running mean in the last lesson, where enough iterations are behind it."""
    means = running_mean(run.points, [point.success for point in run.points])
    _, places = lessons(run.points)[-1]
    full = min(window(len(run.points)) - 1, len(places) - 1)  # means of fewer iterations are noise
    return [(run.points[place], means[place]) for place in places][full:]


@dataclass(frozen=True)
class Fall:
    """Best success rate in the last lesson of a training, and the one at its end."""

    measured: str
    """Name of the success rate."""
    best: float
    iteration: int
    """Iteration of the best success rate, the last one among equals."""
    last: float
    kept_best: bool
    """True if the weights of that iteration were kept."""

    @property
    def points(self) -> float:
        """Difference of the two success rates, as a fraction."""
        return self.best - self.last


def largest_fall(run: RunData) -> Fall | None:
    """Return how far a training ended below its own best, in validation or else in training; ``None`` without any.

    Which weights were kept makes no difference.
    """
    if not run.points:
        return None
    _, places = lessons(run.points)[-1]
    measured, pairs = "validation success", measured_from_start(run.points[places.start :], "validation_success")
    kept_best = bool(pairs) and run.settings.get("rlft.keep") == "best"
    if not pairs:
        measured, pairs = "training success", steady_success(run)
    point, best = max(pairs, key=lambda pair: (pair[1], pair[0].iteration))
    return Fall(measured, best, point.iteration, pairs[-1][1], kept_best)
