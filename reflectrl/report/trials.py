"""The table of trials: what a policy solves when it plays the same tasks again, with a memory and without."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.report.runs import Run
from reflectrl.rollout.trials import TrialRow

WORDS = ("run", "policy", "memory", "split", "trial", "tasks")
HEADS = (*WORDS, "episodes", "past episodes", "success [95 %]", "solved so far [95 %]", "steps")
NOTE = (
    "Success: of this trial alone. Solved so far: tasks that this trial or an earlier one solved, the paper's number. "
    "Without a memory, it says what trying again is worth alone."
)


def trial_cells(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """Return a row of ``HEADS`` for each trial of ``runs``, in order."""
    return [(run.name, *_cells(row)) for run in runs for row in run.trials]


def _cells(row: TrialRow) -> tuple[str, ...]:
    metrics = row.metrics
    return (
        row.policy,
        "with" if row.memory else "without",
        row.split,
        str(row.trial),
        row.group or "all",
        str(metrics.episodes),
        f"{row.remembered:,}",
        with_interval(metrics.success, metrics.success_low, metrics.success_high),
        with_interval(row.solved, row.solved_low, row.solved_high),
        f"{metrics.length:.1f}",
    )


def with_interval(rate: float, low: float, high: float) -> str:
    """Return a rate with its interval, in percent: ``50% [40, 60]``."""
    return f"{rate:.0%} [{100 * low:.0f}, {100 * high:.0f}]"
