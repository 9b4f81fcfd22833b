"""Comparison of groups of runs: what several seeds say about a recipe, with its uncertainty.

A group is a set of runs whose recipes differ in the seed only. The statistics are those of Agarwal et al., "Deep
Reinforcement Learning at the Edge of the Statistical Precipice" (2021): the interquartile mean with a bootstrap
interval, and the probability of improvement, beside the mean and the worst run.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from reflectrl.core import InvalidInput, nearest
from reflectrl.report.gain import Interval, over_runs, tell_gain, tell_way, tell_worst
from reflectrl.report.runs import RunData
from reflectrl.report.series import largest_fall
from reflectrl.report.tables import OUTDATED, markdown_table, print_line, print_rows
from reflectrl.rollout.results import EvalRow

RESAMPLES = 10_000
"""Number of bootstrap samples of an interval, drawn from a fixed seed so that equal runs give equal intervals."""
LEAST_RUNS = 3
"""Minimum number of runs a side of a probability of improvement: one run that beats another is not evidence."""
FloatArray = NDArray[np.float64]
RECIPE = "recipe"
"""Groups runs by their recipe's name and all of its settings except description and seed."""
_FREE = ("name", "description", "seed")
_BESIDE = ("random", "sft", "expert")


@dataclass(frozen=True)
class Rows:
    """Rows of the evaluations that are compared."""

    policy: str = "rlft"
    split: str = "test"
    mode: str = "sampled"
    reflections: str | None = None
    """A control, or another reflector's name; the recipe's own reflections if absent."""

    def of(self, run: RunData) -> dict[str, EvalRow]:
        """Return the rows of a run, by policy."""
        of_all_tasks = [row for row in run.rows if row.reflections == self.reflections and not row.group]
        rows = run.own_rows if self.reflections is None else of_all_tasks
        return {row.policy: row for row in rows if (row.split, row.mode) == (self.split, self.mode)}

    def successes(self, runs: Sequence[RunData]) -> list[float]:
        """Return the success rate of each run that has such a row."""
        found = (self.of(run).get(self.policy) for run in runs)
        return [row.metrics.success for row in found if row is not None]

    def __str__(self) -> str:
        reflections = "" if self.reflections is None else f", reflections {self.reflections}"
        return f"policy {self.policy}, split {self.split}, mode {self.mode}{reflections}"


@dataclass(frozen=True)
class Score:
    """Results of one run."""

    run: str
    success: float
    episode_return: float
    length: float
    """Mean steps of an episode."""
    illegal: float
    """Fraction of steps with an illegal action."""
    sft: float | None
    """Success rate of the policy before RLFT; ``None`` where it was not evaluated."""
    fall: float | None
    """Difference between the best success rate in training and that at its end; ``None`` without training."""


@dataclass(frozen=True)
class Summary:
    """One group of runs; all numbers but ``runs`` are success rates, differences of them, or probabilities."""

    group: str
    runs: int
    sft: float | None
    """Mean of the policies before RLFT; ``None`` where none was evaluated."""
    mean: float
    interval: tuple[float, float]
    """95 % interval of the mean, over runs and tasks; see ``over_runs``."""
    iqm: float
    """Interquartile mean: the mean of the middle half of the runs."""
    iqm_interval: tuple[float, float] | None
    """95 % percentile bootstrap interval over the runs; ``None`` for one."""
    worst: float
    worst_run: str
    over_sft: float | None
    """Probability that a run ends above the policy before RLFT of a run of the group; ``None`` for few runs."""
    least_gain: float | None
    """Smallest gain of a run over its own policy before RLFT."""
    over_first: float | None
    """Probability that a run of this group ends above one of the first group; ``None`` for the first, and for few."""
    first: int
    """Number of runs of the first group; 0 for that group itself."""
    largest_fall: float | None
    """Largest difference between a run's best success rate in training and that at its end."""
    verdict: str
    """How far RLFT came and what it changed, in the words of the report."""
    scores: tuple[Score, ...]


class _Judged(NamedTuple):
    """A run's results, and its success rates with what their tasks leave open."""

    score: Score
    after: Interval
    others: Mapping[str, Interval]
    """Success of ``random``, ``sft`` and ``expert``, where they played beside the policy after RLFT."""


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter of ``values``, each rounded down to whole values."""
    return float(_middle_means(np.asarray([values]))[0])


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the interquartile mean of at least two values."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(_middle_means(drawn), (2.5, 97.5))
    return float(low), float(high)


def _middle_means(samples: FloatArray) -> FloatArray:
    """Return (N,) interquartile means of (N, runs) values."""
    cut = samples.shape[1] // 4
    means: FloatArray = np.sort(samples, axis=1)[:, cut : samples.shape[1] - cut].mean(axis=1)
    return means


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability that one of ``ours`` exceeds one of ``others``; ties count half (Mann-Whitney U / nm)."""
    differences = np.asarray(ours)[:, None] - np.asarray(others)[None, :]
    return float((differences > 0).mean() + 0.5 * (differences == 0).mean())


def compare(runs: Sequence[RunData], rows: Rows, by: str = RECIPE) -> tuple[list[Summary], list[str]]:
    """Summarise runs in groups, in the order of the runs.

    Args:
        runs: the runs.
        rows: rows of their evaluations to compare.
        by: ``recipe``, or a recipe key such as ``rlft.gamma`` whose values name the groups.

    Returns:
        The groups, and a sentence about each run that has no such row and is left out, whose rows are of an earlier
        evaluation than its recipe describes, or that repeats another one, and about probabilities of too few runs.

    Raises:
        InvalidInput: no run has such a row, or no recipe has the key ``by``.

    """
    groups: dict[str, list[_Judged]] = {}
    remarks = repeats(runs)
    for name, members in group_runs(runs, by).items():
        for run in members:
            judged = _judged(run, rows)
            if judged is None:
                remarks.append(f"{run.name} is left out: its evaluation has no row of {rows}.")
                continue
            groups.setdefault(name, []).append(judged)
            if run.outdated_rows:
                remarks.append(f"{run.name}: {OUTDATED}.")
    if not groups:
        raise InvalidInput(
            f"none of {len(runs)} runs has a row of {rows}; choose other --policy, --split, --mode or --reflections, "
            "or run `reflectrl eval` for them."
        )
    first = next(iter(groups.values()))
    summaries = [_summary(name, runs, () if runs is first else first, rows) for name, runs in groups.items()]
    if any(FEW in group_cells(summary) for summary in summaries):
        remarks.append(
            f"P() is left out ({FEW}) where a side has fewer than {LEAST_RUNS} runs: one that beats another is not "
            "evidence."
        )
    return summaries, remarks


def repeats(runs: Sequence[RunData]) -> list[str]:
    """Return a sentence about each run that is another one again, such as a copy: it tells nothing of further seeds."""
    first: dict[str, str] = {}
    said = []
    for run in runs:
        settings = {key: value for key, value in run.settings.items() if key not in ("name", "description")}
        same = first.setdefault(repr((sorted(settings.items()), run.points, run.rows)), run.name)
        if same != run.name and run.points:
            said.append(f"{run.name} is the same run as {same}; leave one out, or the intervals are too narrow.")
    return said


def group_runs(runs: Sequence[RunData], by: str = RECIPE) -> dict[str, list[RunData]]:
    """Return the runs of each group by its name; see ``compare``.

    Raises:
        InvalidInput: no recipe has the key ``by``.

    """
    settings = [_as_text(run.settings or {"name": run.name}) for run in runs]
    known = {key for each in settings for key in each}
    if by != RECIPE and by not in known:
        raise InvalidInput(f"--by {by} is not a key of these recipes; {nearest(by, [RECIPE, *known])}")
    groups: dict[str, list[RunData]] = {}
    for run, name in zip(runs, _names(settings, by), strict=True):
        groups.setdefault(name, []).append(run)
    return groups


def _summary(name: str, runs: Sequence[_Judged], first: Sequence[_Judged], rows: Rows) -> Summary:
    scores, after = [run.score for run in runs], [run.after for run in runs]
    values, of_first = [each.mean for each in after], [run.after.mean for run in first]
    random, before, expert = (
        # of all runs, or the means would be of different ones
        [run.others[policy] for run in runs] if all(policy in run.others for run in runs) else []
        for policy in _BESIDE
    )
    began = [each.mean for each in before]
    worst = min(scores, key=lambda score: score.success)
    mean = over_runs(after)
    own = rows.policy == "rlft" and rows.reflections is None
    played = "RLFT" if own else " with reflections ".join(filter(None, (rows.policy, rows.reflections)))
    said = (
        tell_way(after, random, expert, played),
        tell_gain(after, before, policy=played),
        tell_worst(values, [score.run for score in scores]),
    )
    return Summary(
        name,
        len(values),
        float(np.mean(began)) if began else None,
        mean.mean,
        (mean.low, mean.high),
        interquartile_mean(values),
        bootstrap_interval(values) if len(values) > 1 else None,
        worst.success,
        worst.run,
        probability_of_improvement(values, began) if len(began) >= LEAST_RUNS else None,
        min(value - sft for value, sft in zip(values, began, strict=True)) if began else None,
        probability_of_improvement(values, of_first) if min(len(values), len(of_first)) >= LEAST_RUNS else None,
        len(first),
        max((score.fall for score in scores if score.fall is not None), default=None),
        " ".join(filter(None, said)),
        tuple(scores),
    )


def _judged(run: RunData, wanted: Rows) -> _Judged | None:
    found = wanted.of(run)
    if wanted.policy not in found:
        return None
    metrics, fall = found[wanted.policy].metrics, largest_fall(run)
    beside = _BESIDE if wanted.policy == "rlft" else ()
    others = {name: Interval.of(found[name].metrics) for name in beside if name in found}
    score = Score(
        run.name,
        metrics.success,
        metrics.episode_return,
        metrics.length,
        metrics.illegal,
        sft=others["sft"].mean if "sft" in others else None,
        fall=None if fall is None else fall.points,
    )
    return _Judged(score, Interval.of(metrics), others)


def _names(settings: Sequence[Mapping[str, str]], by: str) -> list[str]:
    """Return the name of each run's group: a value of ``by``, or the recipe with the keys in which groups differ."""
    if by != RECIPE:
        return [f"{by}={each.get(by, 'absent')}" for each in settings]
    whole = [{key: value for key, value in each.items() if key not in _FREE} for each in settings]
    alike: dict[str, list[Mapping[str, str]]] = {}
    for each, rest in zip(settings, whole, strict=True):
        alike.setdefault(each.get("name", ""), []).append(rest)
    return [_name(each.get("name", ""), rest, alike) for each, rest in zip(settings, whole, strict=True)]


def _name(name: str, settings: Mapping[str, str], alike: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    keys = sorted({key for other in alike[name] for key in (*settings, *other)})
    varied = [key for key in keys if len({other.get(key) for other in alike[name]}) > 1]
    return " ".join([name, *(f"{key}={settings.get(key, 'absent')}" for key in varied)])


def _as_text(settings: Mapping[str, Any]) -> dict[str, str]:
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in settings.items()}


HEADS = ("group", "runs", "SFT", "mean", "IQM [95 %]", "worst", "P(> SFT)", "least gain", "P(> first)", "fall")
FEW = "-"
"""Cell of a probability that is left out because there are too few runs."""


def group_cells(summary: Summary) -> tuple[str, ...]:
    """Return a group as one text for each of ``HEADS``, rates in per cent."""

    def percent(value: float | None, form: str = ".0f") -> str:
        return "" if value is None else format(100 * value, form)

    def with_ends(value: float, ends: tuple[float, float] | None) -> str:
        return percent(value) + (f" [{percent(ends[0])}, {percent(ends[1])}]" if ends else "")

    return (
        summary.group,
        str(summary.runs),
        percent(summary.sft),
        with_ends(summary.mean, summary.interval),
        with_ends(summary.iqm, summary.iqm_interval),
        f"{percent(summary.worst)} ({summary.worst_run})",
        FEW if summary.sft is not None and summary.over_sft is None else percent(summary.over_sft),
        percent(summary.least_gain, "+z.0f"),
        FEW if summary.first and summary.over_first is None else percent(summary.over_first),
        percent(summary.largest_fall),
    )


def print_comparison(summaries: Sequence[Summary]) -> None:
    """Print the table, and the verdict on each group."""
    print_rows(HEADS, [group_cells(summary) for summary in summaries], words=1)
    for each in summaries:
        print_line(f"{each.group}: {each.verdict}")


def as_markdown(summaries: Sequence[Summary]) -> str:
    """Return the table as Markdown."""
    return markdown_table(HEADS, [*map(group_cells, summaries)])


def as_csv(summaries: Sequence[Summary]) -> str:
    """Return the table's numbers, one line per group: the fields of ``Summary`` without verdict and single runs.

    An interval is two columns, with ``_low`` and ``_high`` at the end of their names; what is unknown is empty.
    """
    lines = []
    for summary in summaries:
        numbers = asdict(summary)
        del numbers["verdict"], numbers["scores"]
        for name, ends in (("mean", numbers.pop("interval")), ("iqm", numbers.pop("iqm_interval"))):
            numbers[f"{name}_low"], numbers[f"{name}_high"] = ends or (None, None)
        lines.append(numbers)
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def as_json(summaries: Sequence[Summary]) -> str:
    """Return all numbers, with those of each run, as JSON."""
    return json.dumps([asdict(summary) for summary in summaries], indent=2)
