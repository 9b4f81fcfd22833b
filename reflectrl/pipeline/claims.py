"""Claims: a file says what should be better than what; its runs are made, and each claim gets a verdict."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from reflectrl.config import load_recipe
from reflectrl.config.evaluation import EvalSection
from reflectrl.config.yaml_text import read_yaml
from reflectrl.core import InvalidInput, nearest
from reflectrl.core.files import read_text
from reflectrl.core.run_files import RESULTS
from reflectrl.core.settings import Section, mistakes, refusal
from reflectrl.pipeline.sweep import PlannedRun, plan_runs, read_seeds, unfinished
from reflectrl.report.compare import LEAST_RUNS, Rows, probability_of_improvement
from reflectrl.report.forest import ForestRow
from reflectrl.report.gain import Interval, change_over_runs, over_runs
from reflectrl.report.runs import read_runs

HEADS = ("claim", "recipe", "runs", "more", "less", "difference [95 %]", "P(more)", "verdict")


class Side(Section):
    """One side of a claim: runs of its recipe, and which row of their evaluation counts."""

    arm: str | None = None
    """Arm of the recipe; absent: the recipe itself."""
    set: dict[str, Any] = {}
    """Changed keys of the recipe, such as ``rlft.gamma: 1``."""
    policy: str = "rlft"
    mode: Literal["sampled", "greedy"] = "sampled"
    split: str = "test"
    reflections: str | None = None
    """A control such as ``blank``; absent: the recipe's own reflections."""

    @property
    def rows(self) -> Rows:
        """The row that counts."""
        return Rows(self.policy, self.split, self.mode, self.reflections)


class Claim(Section):
    """What should be better than what, and by how much."""

    says: str
    """The claim, one sentence."""
    source: str
    """Where it is made."""
    recipes: list[str] = Field(min_length=1)
    """Recipes in which it is tested, each with a verdict of its own."""
    more: Side = Side()
    """The side whose success should be higher."""
    less: Side = Side()
    effect: float = Field(5.0, gt=0, le=100)
    """Smallest difference that counts, in percentage points."""
    seeds: str = "0-9"
    """Seeds of both sides, such as ``0-9``."""


@dataclass(frozen=True)
class Pair:
    """A claim in one of its recipes, with the runs of both sides."""

    name: str
    claim: Claim
    recipe: str
    more: Sequence[PlannedRun]
    less: Sequence[PlannedRun]


@dataclass(frozen=True)
class Finding:
    """What the finished runs of a pair say."""

    pair: Pair
    runs: int
    """Runs of the side that has fewer."""
    more: Interval | None
    """Success of each side, over its runs; ``None`` before both have one."""
    less: Interval | None
    difference: Interval | None
    improvement: float | None
    """Probability that a run of ``more`` exceeds one of ``less``; ``None`` for few runs."""

    @property
    def verdict(self) -> str:
        """``holds`` for a clear difference that counts, ``does not hold`` where none as large as that is possible.

        A single run may end anywhere, so that fewer than three on a side say nothing.
        """
        if self.difference is None or self.runs < LEAST_RUNS:
            return "too few runs"
        effect = self.pair.claim.effect / 100
        if self.difference.low > 0 and self.difference.mean >= effect:
            return "holds"
        return "does not hold" if self.difference.high < effect else "cannot be told"

    def cells(self) -> tuple[str, ...]:
        """Return the finding as one text for each of ``HEADS``."""
        improvement = "" if self.improvement is None else f"{100 * self.improvement:.0f}"
        points = "" if self.difference is None else self.difference.points
        sides = ("" if side is None else str(side) for side in (self.more, self.less))
        return (self.pair.name, self.pair.recipe, str(self.runs), *sides, points, improvement, self.verdict)

    @property
    def row(self) -> ForestRow | None:
        """The finding in a forest plot; ``None`` before it is one."""
        if self.difference is None or self.runs < LEAST_RUNS:
            return None
        return ForestRow(self.pair.name, self.pair.recipe, self.difference, self.verdict)


def read_claims(path: Path, only: Sequence[str] = ()) -> dict[str, Claim]:
    """Read a YAML file with a mapping from names to claims, of which ``only`` some may be wanted.

    Raises:
        InvalidInput: no such file, mistakes in it (the message lists all of them), or an unknown name.
    """
    values, problems = read_yaml(read_text(path, "claims, a YAML file in UTF-8"), f"{path}")
    if not isinstance(values, dict) or not values:
        raise InvalidInput(f"{path} holds no claims; expected a mapping from names to claims.")
    claims: dict[str, Claim] = {}
    for name, each in values.items():
        given = each if isinstance(each, Mapping) else {}
        try:
            claims[str(name)] = Claim.model_validate(given)
        except ValidationError as error:
            problems += [f"{name}.{mistake}" for mistake in mistakes(error, Claim, given)]
    if problems:
        raise refusal(str(path), problems)
    if unknown := [name for name in only if name not in claims]:
        raise InvalidInput(f"{path} has no claim {unknown[0]!r}; {nearest(unknown[0], claims)}")
    return {name: claim for name, claim in claims.items() if not only or name in only}


def plan_claims(claims: Mapping[str, Claim], folder: Path) -> list[Pair]:
    """Plan the runs of all claims in ``folder``; claims about the same runs share them.

    Raises:
        InvalidInput: wrong or too few seeds, or a claim about two equal sides.
    """
    for name, claim in claims.items():
        if len(read_seeds(claim.seeds)) < LEAST_RUNS:
            raise InvalidInput(f"{name}.seeds: given {claim.seeds}; expected {LEAST_RUNS} or more, such as 0-9.")
        if claim.more == claim.less:
            raise InvalidInput(f"{name} compares a side with itself; let more or less say in what they differ.")
    return [
        Pair(name, claim, recipe, *(_runs(recipe, side, claim.seeds, folder) for side in (claim.more, claim.less)))
        for name, claim in claims.items()
        for recipe in claim.recipes
    ]


def _runs(recipe: str, side: Side, seeds: str, folder: Path) -> list[PlannedRun]:
    changes = tuple(f"{key}={json.dumps(value)}" for key, value in sorted(side.set.items()))
    file = Path(recipe).is_file()
    told_apart = repr((Path(recipe).resolve() if file else None, changes))
    digest = f"-{hashlib.sha256(told_apart.encode()).hexdigest()[:8]}" if file or changes else ""
    name = f"{Path(recipe).stem if file else recipe.replace('/', '-')}{digest}"
    return plan_runs(folder, name, recipe, read_seeds(seeds), overrides=changes, arms=(side.arm,))


def waiting_runs(pairs: Sequence[Pair]) -> list[PlannedRun]:
    """Return the runs that are not done, those of the first seed of all claims first.

    Raises:
        InvalidInput: a recipe with mistakes or without what a claim compares, or a folder that was begun with other
            inputs.
    """
    for pair in pairs:
        for word, side, run in (("more", pair.claim.more, pair.more[0]), ("less", pair.claim.less, pair.less[0])):
            _check_evaluated(f"{pair.name}.{word}", side, load_recipe(run.recipe, run.overrides, arm=run.arm).eval)
    numbered = [(number, run) for pair in pairs for side in (pair.more, pair.less) for number, run in enumerate(side)]
    every = {run.folder: run for _, run in sorted(numbered, key=lambda each: each[0])}
    return unfinished([*every.values()])


def _check_evaluated(where: str, side: Side, section: EvalSection) -> None:
    """Refuse a side whose row the evaluation of its recipe does not have."""
    words = [*section.controls, *(each.name for each in section.reflectors)]
    known: dict[str, tuple[str, Sequence[str]]] = {
        "policy": (side.policy, section.policies),
        "split": (side.split, section.splits),
        "mode": (side.mode, ["sampled", "greedy"] if section.greedy else ["sampled"]),
        "reflections": (side.reflections or "", ["", *words]),
    }
    for key, (given, there) in known.items():
        if given not in there:
            raise InvalidInput(
                f"{where}.{key}: its recipe does not evaluate {given!r}; {nearest(given, filter(None, there))}"
            )


def judge(pair: Pair) -> Finding:
    """Judge a pair by its finished runs.

    Rows of the same runs (two policies, or two ways to reflect) are compared run by run, others as two groups.
    """
    sides = []
    for planned, side in ((pair.more, pair.claim.more), (pair.less, pair.claim.less)):
        evaluated = [run.folder for run in planned if (run.folder / RESULTS).is_file()]
        found = read_runs(evaluated) if evaluated else []
        rows = {run.path: row for run in found if (row := side.rows.of(run).get(side.policy)) is not None}
        sides.append({path: Interval.of(row.metrics) for path, row in rows.items()})
    more, less = sides
    if shared := [path for path in more if path in less]:
        more, less = ({path: side[path] for path in shared} for side in sides)
    after, before = [*more.values()], [*less.values()]
    if not after or not before:
        return Finding(pair, 0, None, None, None, None)
    ends = over_runs(after), over_runs(before)
    difference = change_over_runs(after, before) if shared else ends[0].minus(ends[1])
    runs = min(len(after), len(before))
    means = [each.mean for each in after], [each.mean for each in before]
    return Finding(pair, runs, *ends, difference, probability_of_improvement(*means) if runs >= LEAST_RUNS else None)
