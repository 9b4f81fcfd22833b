"""Runs as the lines of a figure: seeds of one arm averaged, over all of the curriculum or one stage of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import fmean
from typing import Any, Generic, TypeVar

import numpy as np

from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput, nearest
from reflectrl.report.runs import Point, Run

T = TypeVar("T")

T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Two-sided 95 % quantiles of Student's t, from one degree of freedom on."""


@dataclass(frozen=True)
class Quantity(Generic[T]):
    """What is drawn, or along what."""

    title: str
    value: Callable[[Point], T]
    """``None`` in files of versions that did not record it."""
    low: float | None = None
    """What it cannot be below."""
    high: float | None = None


WHATS: Mapping[str, Quantity[float | None]] = {
    "success": Quantity("Success rate (%)", lambda point: 100 * point.success, 0.0, 100.0),
    "return": Quantity("Return", lambda point: point.episode_return),
    "entropy": Quantity("Entropy (nats a step)", lambda point: point.entropy, 0.0),
    "length": Quantity("Steps an episode", lambda point: point.length, 0.0),
}
XS: Mapping[str, Quantity[float]] = {
    "iteration": Quantity("Iterations", lambda point: point.iteration),
    "env_steps": Quantity("Environment steps", lambda point: point.env_steps),
}


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
    """Over the seeds, each smoothed."""
    half: Sequence[float]
    """Half of the 95 % interval of the mean over seeds; empty for a single run."""
    raw: Sequence[float]
    """A single run's values before they were smoothed; empty for several."""


@dataclass(frozen=True)
class Facts:
    """What the figures of the paper want to know of a recipe; one of an older version tells it as well."""

    values: Mapping[str, Any]
    reflects: bool
    tuned: bool
    """Whether SFT went before RLFT."""
    negatives: bool
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Figure:
    """A figure of the paper: which facts of a recipe make the arms, and how they are told apart."""

    title: str
    label: Callable[[Facts], str]
    dashed: Callable[[Facts], bool]
    last_stage: bool = False
    """Whether only the last stage of the curriculum counts, from its beginning."""


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
    """Runs of one label are seeds of one arm."""
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
    """Without what seeds of an arm may differ in."""
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
        told = ", ".join(f"{run} with {stage!r}" for stage, run in names.items())
        raise InvalidInput(f"these runs end with different stages of their curricula ({told}); choose one: --stage.")
    return next(iter(names))


def _facts(run: Run) -> Facts:
    values, _ = read_yaml(run.recipe, f"recipe.yaml of run {run.name}")
    try:
        return Facts(
            values,
            reflects=values["players"]["reflector"] != "none",
            tuned=bool(values["sft"]["enabled"]),
            negatives=values["data"]["negatives"] > 0,
            stages=tuple(str(stage["name"]) for stage in values["rlft"]["stages"] or [{}]),
        )
    except (KeyError, TypeError) as error:
        raise InvalidInput(
            f"the recipe of run {run.name} lacks one of players.reflector, sft.enabled, data.negatives, rlft.stages, "
            "by which a figure tells runs apart; leave it out, or name the lines yourself: LABEL=RUN, without --figure."
        ) from error


def lines(arms: Sequence[Arm], *, what: str, x: str, stage: str | None = None, smooth: int | None = None) -> list[Line]:
    """Each arm as a line.

    Args:
        arms: what to draw.
        what: one of ``WHATS``.
        x: one of ``XS``.
        stage: only this one, counted from its beginning; absent: all of training.
        smooth: iterations of the running mean; absent: a twentieth of the longest run, at least 5.

    Raises:
        InvalidInput: a run has no metrics yet, or none of this stage or quantity.

    """
    read = [[_parts(run, stage, WHATS[what], XS[x]) for run in arm.runs] for arm in arms]
    width = smooth or max(5, max(sum(len(part.x) for part in parts) for seeds in read for parts in seeds) // 20)
    return [_line(arm, seeds, width) for arm, seeds in zip(arms, read, strict=True)]


@dataclass(frozen=True)
class _Part:
    """One stage of a run."""

    x: Sequence[float]
    values: Sequence[float]


def _line(arm: Arm, seeds: Sequence[Sequence[_Part]], width: int) -> Line:
    """Smoothed anew with each stage, as what comes next may be much harder."""
    curves = [
        ([place for part in parts for place in part.x], [y for part in parts for y in smoothed(part.values, width)])
        for parts in seeds
    ]
    raw = [value for part in seeds[0] for value in part.values] if len(seeds) == 1 and width > 1 else []
    return Line(arm.label, arm.dashed, *mean_over_seeds(curves), raw)


def _parts(run: Run, stage: str | None, what: Quantity[float | None], along: Quantity[float]) -> list[_Part]:
    if not run.points:
        raise InvalidInput(f"run {run.name} has no metrics yet; run `reflectrl rlft` first, or leave it out.")
    parts, ahead = [], 0.0
    for name, group in groupby(run.points, key=lambda point: point.stage):
        points = list(group)
        values = [value for point in points if (value := what.value(point)) is not None]
        if len(values) < len(points):
            raise InvalidInput(f"run {run.name} was made by an older version, which did not record {what.title!r}.")
        origin = ahead if stage else 0.0
        if stage in (None, name):
            parts.append(_Part([along.value(point) - origin for point in points], values))
        ahead = along.value(points[-1]) + (along is XS["iteration"])  # the next stage begins one iteration later
    if not parts:
        known = nearest(stage or "", (point.stage for point in run.points))
        raise InvalidInput(f"run {run.name} has no iteration of stage {stage!r} so far; {known}")
    return parts


def stage_starts(runs: Sequence[Run], x: str) -> list[tuple[float, str]]:
    """Where stages begin, but the first; a stage that begins at several places is left out."""
    found: dict[str, set[float]] = {}
    for run in runs:
        for before, point in pairwise(run.points):
            if before.stage != point.stage:
                found.setdefault(point.stage, set()).add(XS[x].value(point))
    return [(place, name) for name, (place, *others) in found.items() if not others]


def smoothed(values: Sequence[float], width: int) -> list[float]:
    """Mean of the last ``width`` values at each place, or of as many as there are."""
    return [fmean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1)]


def mean_over_seeds(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[list[float], list[float], list[float]]:
    """Mean of curves, and half of its 95 % t interval, where all of them are; between points they are straight.

    Args:
        curves: each as x, rising, and y.

    Returns:
        x, mean, half; the last is empty for one curve.

    """
    begin, end = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.unique([place for x, _ in curves for place in x if begin <= place <= end])
    values = np.array([np.interp(grid, x, y) for x, y in curves])
    seeds = len(curves)
    if seeds == 1:
        return grid.tolist(), values[0].tolist(), []
    quantile = T95[seeds - 2] if seeds - 2 < len(T95) else 1.96 + 2.7 / (seeds - 1)
    half = quantile * values.std(axis=0, ddof=1) / seeds**0.5
    return grid.tolist(), values.mean(axis=0).tolist(), half.tolist()
