"""The rule of all verdicts: intervals over runs and of differences, compared with the literature and by simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from reflectrl.report.gain import Interval, change_over_runs, over_runs
from reflectrl.report.series import mean_interval
from reflectrl.rollout.iteration import wilson_interval

LEAST_COVERAGE = 0.93


def seen(rate: float, tasks: int) -> Interval:
    """Return what is known of a run that won a share of its tasks."""
    return Interval(rate, *wilson_interval(rate, tasks))


def of(rates: Sequence[float], tasks: int) -> list[Interval]:
    return [seen(rate, tasks) for rate in rates]


def holds(interval: Interval, truth: float) -> bool:
    return interval.low - 1e-12 <= truth <= interval.high + 1e-12  # but for rounding


def test_the_interval_of_a_difference_is_newcombe_s() -> None:
    # 56 of 70 against 48 of 80, the example of Newcombe 1998, table II (a)
    difference = Interval(0.8, 0.6918, 0.8769).minus(Interval(0.6, 0.4903, 0.7000))
    assert (difference.low, difference.high) == (pytest.approx(0.0524, abs=2e-3), pytest.approx(0.3339, abs=2e-3))


@pytest.mark.parametrize(("rates", "tasks"), [((1.0, 1.0), 10), ((0.0, 0.0, 0.0), 30), ((0.5, 0.5), 8)])
def test_runs_that_agree_are_one_sample_of_all_their_tasks(rates: Sequence[float], tasks: int) -> None:
    found = over_runs(of(rates, tasks))
    assert (found.low, found.high) == pytest.approx(wilson_interval(rates[0], len(rates) * tasks))


def test_runs_that_scatter_more_than_their_tasks_explain_are_worth_fewer_trials() -> None:
    spread, even = over_runs(of([0.8, 0.9, 1.0], 100)), over_runs(of([0.89, 0.9, 0.91], 100))
    assert spread.high - spread.low > 3 * (even.high - even.low)
    half = 4.303 * 0.1 / 3**0.5  # of Student's interval with two degrees of freedom
    assert (spread.low, spread.high) == pytest.approx(wilson_interval(0.9, 0.9 * 0.1 * (1.96 / half) ** 2), abs=1e-4)
    assert over_runs([seen(0.9, 10)]) == seen(0.9, 10)


RUNS, TASKS, RATES = (2, 3, 4, 5), (10, 20, 50, 100), (0.5, 0.9, 0.97, 1.0)


@pytest.mark.slow
def test_the_interval_over_runs_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    for rate, runs, tasks in ((rate, runs, tasks) for rate in RATES for runs in RUNS for tasks in TASKS):
        wins = draw.binomial(tasks, rate, (1000, runs))
        wins.sort()
        counts, times = np.unique(wins, axis=0, return_counts=True)
        found = [over_runs(of(list(each / tasks), tasks)) for each in counts]
        held = sum(n for one, n in zip(found, times, strict=True) if holds(one, rate))
        assert held >= LEAST_COVERAGE * 1000, f"{rate}, {runs} runs of {tasks} tasks: {held / 1000}"


@pytest.mark.slow
def test_the_interval_of_a_change_holds_the_truth() -> None:
    draw = np.random.default_rng(0)
    pairs = ((0.9, 0.9), (0.5, 0.9), (0.97, 1.0), (1.0, 1.0))
    for (before, after), runs, tasks in ((pair, *size) for pair in pairs for size in ((2, 10), (2, 100), (4, 10))):
        held = 0
        for _ in range(400):
            luck = draw.normal(0, 0.1, runs) if (before, after) == (0.5, 0.9) else np.zeros(runs)  # of each seed's data
            began = draw.binomial(tasks, before + luck) / tasks
            ended = draw.binomial(tasks, np.clip(after + luck * (after < 0.9), 0, 1)) / tasks
            change = change_over_runs(of(list(ended), tasks), of(list(began), tasks))
            held += holds(change, after - before)
        assert held >= LEAST_COVERAGE * 400, f"{before} to {after}, {runs} runs of {tasks} tasks: {held / 400}"


def test_a_change_is_clear_only_if_the_runs_agree() -> None:
    before = of([0.1, 0.3, 0.5, 0.65, 0.8], 100)
    assert change_over_runs(of([0.25, 0.45, 0.65, 0.8, 0.95], 100), before).is_clear
    uneven = change_over_runs(of([1.0, 0.99, 0.98], 100), of([0.83, 0.9, 0.97], 100))
    assert (uneven.is_clear, uneven.points) == (False, "+9 points [-11, +29]")
    assert change_over_runs([seen(0.9, 100)], [seen(0.5, 100)]) == seen(0.9, 100).minus(seen(0.5, 100))


@pytest.mark.parametrize(
    ("values", "half"),
    [
        ([1.0, 3.0, 5.0], 4.303 * 2 / 3**0.5),
        (
            [float(number % 2) for number in range(20)],
            2.093 * 0.51299 / 20**0.5,
        ),  # beyond the table
    ],
)
def test_the_interval_of_a_mean_is_student_s(values: Sequence[float], half: float) -> None:
    assert mean_interval(values) == (pytest.approx(sum(values) / len(values)), pytest.approx(half, rel=0.01))
    assert mean_interval(values[:1]) == (values[0], None)
