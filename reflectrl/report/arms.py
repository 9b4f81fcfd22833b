"""Lines of a figure: the seeds of one arm averaged, over all of the curriculum or one stage of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput, nearest
from reflectrl.report.runs import Run
from reflectrl.report.series import mean_over_seeds, running_mean, stages, window
from reflectrl.rollout.iteration import Iteration
from reflectrl.rollout.metrics import metrics_of

WHATS = {metric.name: (field, metric) for field, metric in metrics_of(Iteration).items() if metric.title}
"""Metrics that can be drawn, with their fields, by their names on the command line."""
XS = {"iteration": "Iterations", "env_steps": "Environment steps"}
"""Fields of an iteration along which metrics can be drawn, with their titles."""


def axis_title(what: str) -> str:
    """Label of the axis of a metric."""
    metric = WHATS[what][1]
    return f"{metric.title} (%)" if metric.fraction else metric.title


@dataclass(frozen=True)
class Arm:
    """Runs that differ in their seed alone: one line of the figure."""

    label: str
    runs: tuple[Run, ...]
    dashed: bool = False


@dataclass(frozen=True)
class Line:
    """An arm, ready to be drawn."""

    label: str
    dashed: bool
    x: Sequence[float]
    mean: Sequence[float]
    """Mean over the seeds, each smoothed."""
    half: Sequence[float]
    """Half of the 95 % interval of the mean over seeds; empty for a single run."""
    raw: Sequence[float]
    """A single run's values before they were smoothed; empty for several."""


@dataclass(frozen=True)
class Facts:
    """Facts of a recipe by which the figures of the paper distinguish runs; recipes of older versions have them too."""

    values: Mapping[str, Any]
    reflects: bool
    tuned: bool
    """True if SFT precedes RLFT."""
    negatives: bool
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: the arm of a recipe, and how the arm is drawn."""

    title: str
    label: Callable[[Facts], str]
    dashed: Callable[[Facts], bool]
    last_stage: bool = False
    """True if only the last stage of the curriculum is drawn, from its beginning."""


def _method(facts: Facts) -> str:
    if not facts.reflects:
        return "SFT + RL" if facts.tuned else "RL"
    return "Reflect-RL" if facts.tuned else "Reflect-RL without SFT"


def _with_curriculum(facts: Facts) -> str:
    return f"{_method(facts)} ({'w/' if len(facts.stages) > 1 else 'w/o'} CL)" if facts.reflects else _method(facts)


FIGURES: Mapping[int, Figure] = {
    2: Figure("Training success of the methods", label=_method, dashed=lambda facts: not facts.reflects),
    3: Figure(
        "Training success with and without negative examples",
        label=lambda facts: f"Positive {'+ negative examples' if facts.negatives else 'examples only'}",
        dashed=lambda facts: not facts.negatives,
    ),
    4: Figure(
        "Training success with and without curriculum",
        label=_with_curriculum,
        dashed=lambda facts: not facts.reflects,
        last_stage=True,
    ),
}
"""By their numbers in the paper."""


def arms_by_label(runs: Sequence[Run], labels: Sequence[str]) -> list[Arm]:
    """Arms of runs with one label each; runs of equal labels are seeds of one arm."""
    names = dict.fromkeys(labels)
    return [Arm(name, tuple(r for r, label in zip(runs, labels, strict=True) if label == name)) for name in names]


def arms_of(figure: Figure, runs: Sequence[Run]) -> list[Arm]:
    """Sort runs into the arms of a figure of the paper, by their recipes.

    Raises:
        InvalidInput: the recipes of one arm differ in more than the seed, so its runs are no seeds of each other.

    """
    facts = [_facts(run) for run in runs]
    found: dict[str, list[int]] = {}
    for number, fact in enumerate(facts):
        found.setdefault(figure.label(fact), []).append(number)
    for label, (first, *others) in found.items():
        for other in others:
            if keys := _differing(_settings(facts[first]), _settings(facts[other])):
                raise InvalidInput(
                    f"{runs[first].name} and {runs[other].name} would both be {label!r}, but differ in "
                    f"{', '.join(keys[:3])}; leave one out, or name the lines yourself: LABEL=RUN, without --figure."
                )
    made = [Arm(k, tuple(runs[at] for at in places), figure.dashed(facts[places[0]])) for k, places in found.items()]
    return sorted(made, key=lambda arm: arm.dashed)


def _settings(facts: Facts) -> dict[str, Any]:
    """The values without those in which seeds of one arm may differ."""
    free = {"seed", "name", "description", "eval"} | (set() if facts.tuned else {"sft"})
    return {key: value for key, value in facts.values.items() if key not in free}


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    """The dotted keys in which two recipes differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [k for key in keys for k in _differing(one.get(key), other.get(key), f"{path}.{key}".strip("."))]
    return [] if one == other else [path]


def last_stage(runs: Sequence[Run]) -> str:
    """The name of the stage with which the curricula of all these runs end.

    Raises:
        InvalidInput: they end with different ones, or a run has none.

    """
    names = {_facts(run).stages[-1]: run.name for run in runs}
    if len(names) > 1:
        ends = ", ".join(f"{run} with {stage!r}" for stage, run in names.items())
        raise InvalidInput(f"these runs end with different stages of their curricula ({ends}); choose one: --stage.")
    return next(iter(names))


def _facts(run: Run) -> Facts:
    values, _ = read_yaml(run.recipe, f"recipe.yaml of run {run.name}")
    try:
        return Facts(
            values,
            reflects=values["players"]["reflector"]["player"] != "none",
            tuned=bool(values["sft"]["enabled"]),
            negatives=values["data"]["negatives"] > 0,
            stages=tuple(str(stage["name"]) for stage in values["rlft"]["stages"] or [{}]),
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(
            f"the recipe of run {run.name} lacks one of players.reflector.player, sft.enabled, data.negatives, "
            "rlft.stages, by which a figure sorts runs; leave it out, or name the lines: LABEL=RUN, without --figure."
        ) from error


def lines(arms: Sequence[Arm], *, what: str, x: str, stage: str | None = None, smooth: int | None = None) -> list[Line]:
    """Each arm as a line.

    Args:
        arms: the arms to draw.
        what: name of a metric in ``WHATS``.
        x: name of a field in ``XS``.
        stage: only this stage, counted from its beginning; all of training by default.
        smooth: iterations of the running mean; by default a twentieth of the longest run, at least 5.

    Raises:
        InvalidInput: a run has no metrics yet, or none of this stage, or does not record this metric.

    """
    curves = [[_curve(run, stage, what, x) for run in arm.runs] for arm in arms]
    width = smooth or window(max(len(curve.points) for seeds in curves for curve in seeds))
    return [_line(arm, seeds, width) for arm, seeds in zip(arms, curves, strict=True)]


@dataclass(frozen=True)
class _Curve:
    """One run, before it is smoothed."""

    points: Sequence[Iteration]
    x: Sequence[float]
    values: Sequence[float]


def _curve(run: Run, stage: str | None, what: str, x: str) -> _Curve:
    if not run.points:
        raise InvalidInput(f"run {run.name} has no metrics yet; run `reflectrl rlft` first, or leave it out.")
    places = [place for place, point in enumerate(run.points) if stage in (None, point.stage)]
    if not places:
        known = nearest(stage or "", (point.stage for point in run.points))
        raise InvalidInput(f"run {run.name} has no iteration of stage {stage!r} so far; {known}")
    field, metric = WHATS[what]
    points = [run.points[place] for place in places]
    values = [getattr(point, field) * (100 if metric.fraction else 1) for point in points]
    if any(map(math.isnan, values)):
        raise InvalidInput(
            f"run {run.name} was made by an older version, which did not record {metric.title!r}; draw another "
            "metric, or leave it out."
        )
    origin = 0.0
    if stage is not None and x == "iteration":
        origin = points[0].iteration
    elif stage is not None and places[0] > 0:
        origin = run.points[places[0] - 1].env_steps
    return _Curve(points, [getattr(point, x) - origin for point in points], values)


def _line(arm: Arm, seeds: Sequence[_Curve], width: int) -> Line:
    smooth = [(curve.x, running_mean(curve.points, curve.values, width)) for curve in seeds]
    raw = seeds[0].values if len(seeds) == 1 and width > 1 else []
    return Line(arm.label, arm.dashed, *mean_over_seeds(smooth), raw)


def stage_starts(runs: Sequence[Run], x: str) -> list[tuple[float, str]]:
    """Place and name of each stage but the first; a stage that begins at several places is left out."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for name, places in stages(run.points)[1:]:
            found.setdefault(name, set()).add(getattr(run.points[places.start], x))
    return [(place, name) for name, (place, *others) in found.items() if not others]
