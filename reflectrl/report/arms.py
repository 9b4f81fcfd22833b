"""Lines of a figure: the mean over the seeds of each arm, for the whole curriculum or one of its stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput, nearest
from reflectrl.core.nested import dotted
from reflectrl.report.runs import Run
from reflectrl.report.series import EXACT, mean_over_seeds, measured_from_start, running_mean, stages, window
from reflectrl.rollout.iteration import Iteration
from reflectrl.rollout.metrics import metrics_of

WHATS = {metric.name: (field, metric) for field, metric in metrics_of(Iteration).items() if metric.title}
"""Metrics that can be drawn, with their fields, by their names on the command line."""
XS = {"iteration": "Iterations", "env_steps": "Environment steps"}
"""Fields of an iteration along which metrics can be drawn, with their titles."""


def axis_title(what: str) -> str:
    """Return the label of the axis of a metric."""
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
    """Mean of the seeds' smoothed curves."""
    half: Sequence[float]
    """Half of the 95 % interval of the mean over seeds; empty for a single run."""
    raw: Sequence[float]
    """A single run's values before they were smoothed; empty for several."""


@dataclass(frozen=True)
class Facts:
    """Facts of a recipe by which the figures of the paper distinguish runs; recipes of older versions have them too."""

    settings: Mapping[str, Any]
    """The recipe without the sections in which seeds of one arm may differ."""
    reflects: bool
    tuned: bool
    """True if SFT precedes RLFT."""
    negatives: bool
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper."""

    title: str
    arm: Callable[[Facts], tuple[str, bool]]
    """Function from a recipe's facts to the label of its line, and True if the line is dashed."""
    last_stage: bool = False
    """True if only the last stage of the curriculum is drawn, from its beginning."""


def _method(facts: Facts) -> tuple[str, bool]:
    if facts.reflects:
        return "Reflect-RL" if facts.tuned else "Reflect-RL without SFT", False
    return "SFT + RL" if facts.tuned else "RL", True


def _examples(facts: Facts) -> tuple[str, bool]:
    return f"Positive {'+ negative examples' if facts.negatives else 'examples only'}", not facts.negatives


def _curriculum(facts: Facts) -> tuple[str, bool]:
    label, dashed = _method(facts)
    return f"{label} ({'w/' if len(facts.stages) > 1 else 'w/o'} CL)" if facts.reflects else label, dashed


FIGURES: Mapping[int, Figure] = {
    2: Figure("Training success of the methods", _method),
    3: Figure("Training success with and without negative examples", _examples),
    4: Figure("Training success with and without curriculum", _curriculum, last_stage=True),
}
"""Figures of the paper, by their numbers there."""


def arms_by_label(runs: Sequence[Run], labels: Sequence[str]) -> list[Arm]:
    """Return arms of runs with one label each; runs of equal labels are seeds of one arm."""
    names = dict.fromkeys(labels)
    return [Arm(name, tuple(r for r, label in zip(runs, labels, strict=True) if label == name)) for name in names]


def arms_of(figure: Figure, runs: Sequence[Run]) -> list[Arm]:
    """Sort runs into the arms of a figure of the paper, by their recipes.

    Raises:
        InvalidInput: the recipes of one arm differ in more than the seed, so its runs are not seeds of one arm.

    """
    found: dict[tuple[str, bool], list[Run]] = {}
    for run in runs:
        found.setdefault(figure.arm(_facts(run)), []).append(run)
    for (label, _), (run, *others) in found.items():
        for other in others:
            if keys := _differing(_facts(run).settings, _facts(other).settings):
                raise InvalidInput(
                    f"{run.name} and {other.name} would both be {label!r}, but differ in {', '.join(keys[:3])}; leave "
                    "one out, or name the lines yourself: LABEL=RUN, without --figure."
                )
    return sorted((Arm(label, tuple(of), dashed) for (label, dashed), of in found.items()), key=lambda arm: arm.dashed)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys in which two recipes differ."""
    ours, theirs = dotted(one), dotted(other)
    return [key for key in sorted({*ours, *theirs}) if ours.get(key) != theirs.get(key)]


def last_stage(runs: Sequence[Run]) -> str:
    """Return the name of the stage with which the curricula of all these runs end.

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
        tuned = bool(values["sft"]["enabled"])
        free = {"seed", "name", "description", "eval"} | (set() if tuned else {"sft"})
        return Facts(
            {key: value for key, value in values.items() if key not in free},
            reflects=values["players"]["reflector"]["player"] != "none",
            tuned=tuned,
            negatives=values["data"]["negatives"] > 0,
            stages=tuple(str(stage["name"]) for stage in values["rlft"]["stages"] or [{}]),
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(
            f"the recipe of run {run.name} lacks one of players.reflector.player, sft.enabled, data.negatives, "
            "rlft.stages, by which a figure sorts runs; leave it out, or name the lines: LABEL=RUN, without --figure."
        ) from error


def lines(arms: Sequence[Arm], *, what: str, x: str, stage: str | None = None, smooth: int | None = None) -> list[Line]:
    """Return each arm as a line; the other arguments are those of ``write_plot``.

    Raises:
        InvalidInput: a run has no metrics yet, or none of this stage, or does not record this metric.

    """
    curves = [[_curve(run, stage, what, x) for run in arm.runs] for arm in arms]
    each = [curve.points for seeds in curves for curve in seeds]
    spans = [points[-1].iteration - points[0].iteration + 1 for points in each]
    width = smooth or (1 if WHATS[what][0] in EXACT else window(max(spans)))
    drawn = []
    for arm, seeds in zip(arms, curves, strict=True):
        smoothed = [(curve.x, running_mean(curve.points, curve.values, width)) for curve in seeds]
        raw = seeds[0].values if len(seeds) == 1 and width > 1 else []
        drawn.append(Line(arm.label, arm.dashed, *mean_over_seeds(smoothed), raw))
    return drawn


class _Curve(NamedTuple):
    """Curve of one run before smoothing."""

    points: Sequence[Iteration]
    x: Sequence[float]
    values: Sequence[float]


def _curve(run: Run, stage: str | None, what: str, x: str) -> _Curve:
    if not run.points:
        raise InvalidInput(f"run {run.name} has no metrics yet; run `reflectrl rlft` first, or leave it out.")
    points = [point for point in run.points if stage in (None, point.stage)]
    if not points:
        known = nearest(stage or "", (point.stage for point in run.points))
        raise InvalidInput(f"run {run.name} has no iteration of stage {stage!r} so far; {known}")
    field, metric = WHATS[what]
    origin, begin = 0.0, run.points.index(points[0])
    if stage is not None and x == "iteration":
        origin = points[0].iteration
    elif stage is not None and begin > 0:
        origin = run.points[begin - 1].env_steps
    pairs = measured_from_start(points, field)
    if not pairs:
        raise InvalidInput(
            f"run {run.name} did not record {metric.title!r}: its recipe asks for none, or an older version made it; "
            "draw another metric, or leave it out."
        )
    values = [value * (100 if metric.fraction else 1) for _, value in pairs]
    measured_at = [point for point, _ in pairs]
    return _Curve(measured_at, [getattr(point, x) - origin for point in measured_at], values)


def stage_starts(runs: Sequence[Run], x: str) -> list[tuple[float, str]]:
    """Return position and name of each stage but the first; a stage that begins at different positions is left out."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for name, places in stages(run.points)[1:]:
            found.setdefault(name, set()).add(getattr(run.points[places.start], x))
    return [(place, name) for name, (place, *others) in found.items() if not others]
