"""Sentences of the verdict on the weights that RLFT has kept, and on how they are played."""

from __future__ import annotations

from collections.abc import Iterator

from reflectrl.report.runs import Run
from reflectrl.rollout.validated import CLEAR, way_to_play


def kept_and_played(run: Run) -> Iterator[str]:
    """Yield a sentence if RLFT has kept the weights that it began with, and one if it matters how they are played."""
    validated = run.validated
    if validated is not None and validated.iterations == 0:
        yield (
            f"{run.name} kept the weights that RLFT began with: none that it trained did better in validation "
            f"({validated.rates})."
        )
    greedily = validated is None or validated.plays_greedily
    how = f"{run.name} is played with {way_to_play(greedy=greedily, validated=validated)} unless asked otherwise"
    if tested := _test(run):
        yield f"{how}: {tested}."
    elif validated is not None and validated.differs:
        yield f"{how}."


def _test(run: Run) -> str:
    """Return the success rates of both ways to play in an evaluation where they differ; empty where in none."""
    rates = {(row.split, row.mode): row.metrics.success for row in run.own_rows if row.policy == "rlft"}
    for (split, mode), sampled in rates.items():
        greedy = rates.get((split, "greedy"))
        if mode == "sampled" and greedy is not None and abs(sampled - greedy) > CLEAR:
            return (
                f"on split {split}, {100 * sampled:.0f} % succeeded with sampled actions, {100 * greedy:.0f} % greedily"
            )
    return ""
