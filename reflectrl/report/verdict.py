"""Verdict on runs in plain sentences: what RLFT changed, what reflections were worth, and what did not last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from reflectrl.report.compare import Rows, group_runs, repeats
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
class Interval:
    """Success rate, or difference of two, with its 95 % interval."""

    mean: float
    low: float
    high: float

    def minus(self, other: Interval) -> Interval:
        """Return the difference, with the interval that follows from both (Newcombe 1998, method 10)."""
        difference = self.mean - other.mean
        down = ((self.mean - self.low) ** 2 + (other.high - other.mean) ** 2) ** 0.5
        up = ((self.high - self.mean) ** 2 + (other.mean - other.low) ** 2) ** 0.5
        return Interval(difference, difference - down, difference + up)

    @property
    def is_clear(self) -> bool:
        """True if the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{100 * self.mean:.0f} % [{100 * self.low:.0f}, {100 * self.high:.0f}]"


def verdict(runs: Sequence[Run]) -> list[str]:
    """Return sentences on evaluated runs, with runs of equal recipes taken together; none if nothing was evaluated."""
    evaluated = [run for run in runs if judged_rows(run)]
    groups = group_runs(evaluated)
    several = len(groups) > 1
    sentences = [sentence for name, group in groups.items() for sentence in _gain(group, f"{name}: " * several)]
    sentences += _worth_of_reflections(groups)
    sentences += [sentence for run in runs for sentence in _fall(run)]
    sentences += repeats(evaluated)
    if groups and max(map(len, groups.values())) == 1:
        sentences.append("One run a recipe: other seeds may end elsewhere (`reflectrl run --seeds 0-4` tells).")
    return sentences


def print_verdict(runs: Sequence[Run]) -> None:
    """Print the verdict on ``runs``."""
    for sentence in verdict(runs):
        print_line(sentence)


def judged_rows(run: Run) -> Rows | None:
    """Return the rows of a run that the verdict is about, of the test if it was played; ``None`` without RLFT's."""
    splits = judged_splits(run)
    return Rows(split="test" if "test" in splits else splits[0]) if splits else None


def judged_of(runs: Sequence[Run]) -> Rows | None:
    """Return the rows in which several runs are compared: those that the first evaluated one is judged by."""
    return next(filter(None, map(judged_rows, runs)), None)


def judged_splits(run: Run) -> list[str]:
    """Return the splits on which RLFT was evaluated with sampled actions."""
    return [row.split for row in run.own_rows if (row.policy, row.mode) == ("rlft", "sampled")]


def judged_row(run: Run, policy: str, reflections: str | None = None) -> EvalRow | None:
    """Return the row of a policy that the verdict is about, by default with the recipe's own reflections."""
    wanted = judged_rows(run)
    rows = run.own_rows if reflections is None else [row for row in run.rows if row.reflections == reflections]
    found = [row for row in rows if wanted and (row.policy, row.split, row.mode) == (policy, wanted.split, wanted.mode)]
    return found[0] if found else None


def _estimates(group: Sequence[Run], policy: str, reflections: str | None = None) -> list[Interval]:
    """Return the success of a policy in each run, over its tasks; none if a run lacks it."""
    rows = [row.metrics for run in group if (row := judged_row(run, policy, reflections))]
    found = [Interval(row.success, row.success_low, row.success_high) for row in rows]
    return found if len(found) == len(group) else []


def _over_runs(each: Sequence[Interval], least: float = 0.0) -> Interval:
    """Return the mean of several runs, at least ``least`` and at most 1; of one run, what is known of it.

    Its interval is that over runs, or the wider one that the tasks of the runs leave: equal runs are no certainty.
    """
    mean, half = mean_interval([estimate.mean for estimate in each])
    if half is None:
        return each[0]
    half = max(half, sum(estimate.half**2 for estimate in each) ** 0.5 / len(each))
    return Interval(mean, max(least, mean - half), min(1.0, mean + half))


def _paired(after: Sequence[Interval], before: Sequence[Interval]) -> Interval:
    """Return the mean difference of two policies of the same runs."""
    return _over_runs([one.minus(other) for one, other in zip(after, before, strict=True)], least=-1.0)


def _gain(group: Sequence[Run], name: str) -> Iterator[str]:
    each, sft = _estimates(group, "rlft"), _estimates(group, "sft")
    if not each:
        return
    after, seeds = _over_runs(each), "" if len(group) == 1 else f", mean of {len(group)} runs"
    rows = judged_rows(group[0])
    success = f"success on split {rows.split}" if rows and len(judged_splits(group[0])) > 1 else "success"
    if untrained := _estimates(group, "zero_shot", "none"):
        shown = _over_runs(untrained)
        yield f"{name}Zero-shot, before any training and without reflections, {success} was {shown}{seeds}."
    if not sft:
        yield f"{name}RLFT ended at a {success} of {after}{seeds}."
    elif (gain := _paired(each, sft)).is_clear:
        turned = "raised" if gain.mean > 0 else "lowered"
        yield f"{name}RLFT {turned} {success} from {_over_runs(sft)} to {after}{seeds}."
    else:
        before = _over_runs(sft)
        yield f"{name}RLFT made no clear difference: {success} was {before} before it and {after} after it{seeds}."
    if len(group) > 1:
        worst, name = min((one.mean, run.name) for one, run in zip(each, group, strict=True))
        yield f"The worst of these runs ended at {100 * worst:.0f} % ({name})."


def _worth_of_reflections(groups: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    """Yield a sentence on each group with reflections, beside its twin without, or its own blank reflections."""
    twins: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for group in groups.values():
        if group[0].reflector == "none":
            twins.setdefault(_without_player(group[0]), []).extend(group)
    speaking = {name: group for name, group in groups.items() if group[0].reflector != "none"}
    for name, group in speaking.items():
        each = _estimates(group, "rlft")
        if not each:
            continue
        start, reflecting = f"{name}: " * (len(speaking) > 1), _over_runs(each)
        twin = twins.get(_without_player(group[0]))
        if twin and (others := _estimates(twin, "rlft")):
            silent = _over_runs(others)
            numbers = f"{reflecting} trained with them, {silent} without any"
            yield start + _worth(reflecting.minus(silent), numbers)
        elif blank := _estimates(group, "rlft", "blank"):
            numbers = f"{reflecting} with their words, {_over_runs(blank)} with blank ones"
            yield start + _dependence(_paired(each, blank), numbers)


def _worth(worth: Interval, numbers: str) -> str:
    if not worth.is_clear:
        return f"Reflections made no clear difference here ({_points(worth)}): {numbers}."
    return f"Reflections {'were worth' if worth.mean > 0 else 'cost'} {_points(worth, sign=False)} here: {numbers}."


def _dependence(words: Interval, numbers: str) -> str:
    """Say what reflections add to blank ones, which is not what training with reflections is worth."""
    blank = Interval(-words.mean, -words.high, -words.low)
    if not words.is_clear:
        return f"Blank reflections made no clear difference to this policy ({_points(blank)}): {numbers}."
    does, change = (
        ("depends on its reflections", words) if words.mean > 0 else ("does better with blank reflections", blank)
    )
    return f"The policy {does} ({_points(change)}): {numbers}. A run without a reflector shows what they are worth."


def _points(change: Interval, *, sign: bool = True) -> str:
    points = f"{100 * change.mean:+z.0f}" if sign else f"{abs(100 * change.mean):.0f}"
    return f"{points} points [{100 * change.low:+z.0f}, {100 * change.high:+z.0f}]"


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
    going = any(time.name == "rlft" and not time.done for time in run.times)
    fall = None if going else largest_fall(run)
    if fall is not None and not fall.kept_best and fall.points >= LARGE_FALL:
        yield (
            f"{run.name} did not keep what it had learned: {fall.measured} was {100 * fall.best:.0f} % at iteration "
            f"{fall.iteration} and {100 * fall.last:.0f} % at the end. `rlft.validation` with `rlft.keep=best` keeps "
            "the best."
        )
