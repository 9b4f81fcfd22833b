"""Verdict on runs in plain sentences: what RLFT changed, what reflections were worth, and what did not last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reflectrl.report.compare import Rows, group_runs
from reflectrl.report.runs import Run
from reflectrl.report.series import largest_fall, mean_interval
from reflectrl.report.table import print_line
from reflectrl.rollout.results import EvalRow

LARGE_FALL = 0.1
"""Minimum fall from the best success rate of a training that is worth a sentence."""
_OF_THE_PLAYER = ("players.reflector.", "reflector_model", "eval.", "name", "description", "seed")
"""Keys in which a run with reflections and one without may differ and still be compared."""
_PLAYED = ("eval.split", "eval.tasks", "eval.max_tasks", "eval.env")
"""Keys of the evaluation in which they may not, because they decide what is played."""


@dataclass(frozen=True)
class Estimate:
    """Success rate, or difference of two, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference, with the interval that follows from both (Newcombe 1998, method 10)."""
        difference = self.mean - other.mean
        down = ((self.mean - self.low) ** 2 + (other.high - other.mean) ** 2) ** 0.5
        up = ((self.high - self.mean) ** 2 + (other.mean - other.low) ** 2) ** 0.5
        return Estimate(difference, difference - down, difference + up)

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes 0."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return f"{self.mean:.0%} [{100 * self.low:.0f}, {100 * self.high:.0f}]".replace("%", " %")


def verdict(runs: Sequence[Run]) -> list[str]:
    """Return sentences on evaluated runs, with runs of equal recipes taken together; none if nothing was evaluated."""
    evaluated = [run for run in runs if judged_rows(run)]
    groups = group_runs(evaluated)
    several = len(groups) > 1
    sentences = [sentence for name, group in groups.items() for sentence in _gain(group, f"{name}: " * several)]
    sentences += _worth_of_reflections(list(groups.values()))
    sentences += [sentence for run in runs for sentence in _fall(run)]
    if groups and max(map(len, groups.values())) == 1:
        sentences.append("One run a recipe: other seeds may end elsewhere (`reflectrl run --seeds 0-4` tells).")
    return sentences


def print_verdict(runs: Sequence[Run]) -> None:
    """Print the verdict on ``runs``."""
    for sentence in verdict(runs):
        print_line(sentence)


def judged_rows(run: Run) -> Rows | None:
    """Return the rows of a run that the verdict is about; ``None`` where RLFT was not evaluated."""
    splits = [row.split for row in run.own_rows if (row.policy, row.mode) == ("rlft", "sampled")]
    return Rows(split=splits[0]) if splits else None


def _row(run: Run, policy: str, reflections: str | None = None) -> EvalRow | None:
    """Return the row of a policy, by default with the recipe's own reflections."""
    wanted = judged_rows(run)
    rows = run.own_rows if reflections is None else [row for row in run.rows if row.reflections == reflections]
    found = [row for row in rows if wanted and (row.policy, row.split, row.mode) == (policy, wanted.split, wanted.mode)]
    return found[0] if found else None


def _estimate(group: Sequence[Run], policy: str, reflections: str | None = None) -> Estimate | None:
    """Return the success of a policy, over the tasks of one run or over several runs; ``None`` if a run lacks it."""
    rows = [row for run in group if (row := _row(run, policy, reflections))]
    if len(rows) < len(group):
        return None
    mean, half = mean_interval([row.metrics.success for row in rows])
    if half is None:
        return Estimate(mean, rows[0].metrics.success_low, rows[0].metrics.success_high)
    return Estimate(mean, max(0.0, mean - half), min(1.0, mean + half))


def _gain(group: Sequence[Run], name: str) -> Iterator[str]:
    after, before = _estimate(group, "rlft"), _estimate(group, "sft")
    row = _row(group[0], "rlft")
    if after is None or row is None:
        return
    seeds = "" if len(group) == 1 else f", mean of {len(group)} runs"
    if (untrained := _estimate(group, "zero_shot", "none")) is not None:
        yield f"{name}Zero-shot, before any training and without reflections, success was {untrained}{seeds}."
    if before is None:
        yield f"{name}RLFT ended at a success of {after}{seeds}."
    elif (gain := after.minus(before)).is_clear:
        yield f"{name}RLFT {'raised' if gain.mean > 0 else 'lowered'} success from {before} to {after}{seeds}."
    else:
        yield f"{name}RLFT made no clear difference: success was {before} before it and {after} after it{seeds}."
    if len(group) > 1:
        worst = min((_success(run), run.name) for run in group)
        yield f"The worst of these runs ended at {worst[0]:.0%} ({worst[1]}).".replace("%", " %")


def _success(run: Run) -> float:
    row = _row(run, "rlft")
    return row.metrics.success if row else 0.0


def _worth_of_reflections(groups: Sequence[Sequence[Run]]) -> Iterator[str]:
    """Yield a sentence on each group with reflections, beside its twin without, or its own blank reflections."""
    twins = {_without_player(group[0]): group for group in groups if group[0].reflector == "none"}
    for group in groups:
        reflecting = _estimate(group, "rlft")
        if group[0].reflector == "none" or reflecting is None:
            continue
        twin = twins.get(_without_player(group[0]))
        silent = _estimate(twin, "rlft") if twin else None
        if silent is not None:
            yield _worth(reflecting, silent, f"{reflecting} trained with them, {silent} without any")
        elif (blank := _estimate(group, "rlft", "blank")) is not None:
            yield _worth(
                reflecting, blank, f"the policy comes to {reflecting} with them and to {blank} when they are blank"
            )


def _worth(reflecting: Estimate, silent: Estimate, numbers: str) -> str:
    worth = reflecting.minus(silent)
    points = f"{abs(100 * worth.mean):.0f} points"
    interval = f"[{100 * worth.low:+z.0f}, {100 * worth.high:+z.0f}]"
    if not worth.is_clear:
        return f"Reflections made no clear difference here ({100 * worth.mean:+z.0f} points {interval}): {numbers}."
    return f"Reflections {'were worth' if worth.mean > 0 else 'cost'} {points} here {interval}: {numbers}."


def _without_player(run: Run) -> tuple[tuple[str, str], ...]:
    """Return the settings of a run, except those of the reflecting player and of how the evaluation is done."""
    return tuple(
        sorted(
            (key, repr(value))
            for key, value in run.settings.items()
            if key.startswith(_PLAYED) or not key.startswith(_OF_THE_PLAYER)
        )
    )


def _fall(run: Run) -> Iterator[str]:
    fall = largest_fall(run)
    if fall is not None and not fall.kept_best and fall.points >= LARGE_FALL:
        yield (
            f"{run.name} did not keep what it had learned: {fall.measured} was {fall.best:.0%} at iteration "
            f"{fall.iteration} and {fall.last:.0%} at the end. `rlft.validation` with `rlft.keep=best` keeps the best."
        ).replace("%", " %")
