"""The audit of a rater: its ratings of a run's training episodes against how these ended."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from reflectrl.core import InvalidInput
from reflectrl.report.runs import RunData, read_runs
from reflectrl.report.tables import print_line, print_rows
from reflectrl.rollout.agreement import Agreement, agreement

HEADS = ("episodes", "rated", "accuracy", "precision", "recall", "rank correlation", "with the return")
LEVELS = ("rating", "failed", "succeeded")
LAST = "last quarter"
NOTE = (
    "The highest rating is taken to say that the task is completed. Precision: share of the episodes rated so that "
    "succeeded; recall: share of those that succeeded that are rated so. Rank correlation (Spearman's) of rating and "
    "success, and of rating and return. n/a: not defined."
)


def audit(run: Path) -> RunData:
    """Read a run and check that it has ratings.

    Raises:
        InvalidInput: no run folder, or one without ratings.

    """
    [found] = read_runs([run])
    if not found.ratings:
        raise InvalidInput(
            f"{run} has no ratings to audit; expected a run of `reflectrl rlft` with a recipe that has players.rater, "
            "such as vtifa/nano."
        )
    return found


def agreements(run: RunData) -> Mapping[str, Agreement]:
    """Return the agreement over all iterations and over their last quarter, in which the policy is the best known."""
    return {"all": agreement(run.ratings), LAST: agreement(run.ratings[-max(1, len(run.ratings) // 4) :])}


def agreement_rows(run: RunData) -> list[tuple[str, ...]]:
    """Return a row of ``HEADS`` for each part of the iterations."""
    return [
        (
            part,
            f"{each.episodes:,} of {each.episodes + each.unrated:,}",
            _percent(each.accuracy),
            _percent(each.precision),
            _percent(each.recall),
            _number(each.success_correlation),
            _number(each.return_correlation),
        )
        for part, each in agreements(run).items()
    ]


def level_rows(run: RunData) -> list[tuple[str, ...]]:
    """Return a row of ``LEVELS`` for each level of the scale, lowest first."""
    by_level = agreement(run.ratings).by_level
    return [(str(level), f"{failed:,}", f"{succeeded:,}") for level, (failed, succeeded) in enumerate(by_level)]


def print_audit(run: RunData) -> None:
    """Print both tables, and what their columns mean."""
    print_rows(HEADS, agreement_rows(run), words=1)
    print_line("")
    print_rows(LEVELS, level_rows(run), words=1)
    print_line("")
    print_line(NOTE)


def as_json(run: RunData) -> str:
    """Return the numbers as JSON; null for what is not defined."""
    return json.dumps({part: asdict(each) for part, each in agreements(run).items()}, indent=2)


def _percent(fraction: float | None) -> str:
    return "n/a" if fraction is None else f"{fraction:.1%}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:+.2f}"
