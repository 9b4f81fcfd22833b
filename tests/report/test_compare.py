"""Groups of runs: statistics compared with values by hand, grouping of recipes, and the list of run folders."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import reflectrl, refused
from run_folders import evaluated, iteration, write_ledger

from reflectrl.report.compare import (
    Rows,
    bootstrap_interval,
    compare,
    interquartile_mean,
    probability_of_improvement,
)
from reflectrl.report.runs import read_runs
from reflectrl.report.verdict import verdict
from reflectrl.rollout.iteration import wilson_interval
from reflectrl.rollout.results import read_results, write_results


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    scores = {"0.9": [0.9, 0.8, 0.7, 0.2], "1.0": [0.9, 1.0]}
    return [
        evaluated(tmp_path / f"gamma{gamma}-seed{seed}", success, 0.5, f"rlft.gamma={gamma}", f"seed={seed}")
        for gamma, values in scores.items()
        for seed, success in enumerate(values)
    ]


def test_the_statistics_are_those_of_the_hand() -> None:
    assert interquartile_mean([0.0, 0.4, 0.6, 1.0]) == pytest.approx(0.5)
    assert interquartile_mean([0.1, 0.4, 0.6, 0.7, 0.7, 0.8, 0.9, 1.0]) == pytest.approx(0.7)
    assert interquartile_mean([0.3]) == 0.3
    assert probability_of_improvement([0.5, 0.9], [0.5, 0.1]) == (0.5 + 1 + 1 + 1) / 4
    assert bootstrap_interval([0.4, 0.4]) == (0.4, 0.4)
    low, high = bootstrap_interval([0.0, 1.0])  # one of four samples has both low, one both high
    assert (low, high) == (0.0, 1.0)


def test_runs_that_differ_in_the_seed_only_are_one_group(runs: list[Path]) -> None:
    (nine, one), remarks = compare(read_runs(runs), Rows())
    assert [(each.group, each.runs) for each in (nine, one)] == [
        ("number_line-nano rlft.gamma=0.9", 4),
        ("number_line-nano rlft.gamma=1.0", 2),
    ]
    assert remarks == [
        "P() is left out (-) where a side has fewer than 3 runs: one that beats another is not evidence."
    ]
    assert (nine.mean, nine.iqm, nine.worst) == pytest.approx((0.65, 0.75, 0.2))
    assert nine.worst_run == "gamma0.9-seed3"
    half = 3.182 * 0.31091 / 2  # t of three degrees of freedom
    assert nine.interval == pytest.approx(wilson_interval(0.65, 0.65 * 0.35 * (1.96 / half) ** 2), abs=1e-3)
    assert (nine.over_sft, nine.least_gain) == pytest.approx((0.75, -0.3))
    assert (nine.over_first, one.over_first, one.over_sft) == (None, None, None)


def test_a_probability_of_improvement_needs_three_runs_on_both_sides(runs: list[Path], tmp_path: Path) -> None:
    def cells(line: str) -> list[str]:
        return [cell.strip() for cell in line.split("|")][1:-1]

    lines = reflectrl("compare", *runs, "--format", "markdown").out.splitlines()
    assert [cells(line)[6:9] for line in lines[2:]] == [["75", "-30", ""], ["-", "+40", "-"]]
    runs.append(evaluated(tmp_path / "third", 0.8, 0.5, "rlft.gamma=1.0", "seed=2"))
    (_, three), remarks = compare(read_runs(runs), Rows())
    assert (three.over_sft, three.over_first, remarks) == (1.0, pytest.approx((3.5 + 4 + 2.5) / 12), [])
    assert "P() is left out (-)" in reflectrl("compare", *runs[:1]).err


def test_groups_may_be_those_of_a_key_and_of_another_policy(runs: list[Path]) -> None:
    summaries, _ = compare(read_runs(runs), Rows(policy="sft"), by="seed")
    assert [(each.group, each.runs, each.mean, each.over_sft) for each in summaries] == [
        ("seed=0", 2, 0.5, None),
        ("seed=1", 2, 0.5, None),
        ("seed=2", 1, 0.5, None),
        ("seed=3", 1, 0.5, None),
    ]
    assert summaries[2].iqm_interval is None
    assert summaries[2].interval == pytest.approx(wilson_interval(0.5, 100))  # of its tasks
    assert summaries[0].verdict.startswith("sft ended at a success of 50 %")
    assert "rlft.gama" in refused("compare", *runs, "--by", "rlft.gama")


def test_only_the_policy_after_rlft_is_compared_with_the_one_before(runs: list[Path]) -> None:
    rows = read_results(runs[0] / "eval.jsonl")
    write_results(runs[0] / "eval.jsonl", [*rows, replace(rows[-1], policy="random", reflections="none")])
    ((random,), (trained,)) = (compare(read_runs(runs[:1]), Rows(policy=policy))[0] for policy in ("random", "rlft"))
    assert (random.sft, trained.sft) == (None, 0.5)


def test_a_run_that_is_another_one_again_is_named(tmp_path: Path) -> None:
    one = evaluated(tmp_path / "one", 0.9, 0.5, metrics=[iteration(0)])
    copy = shutil.copytree(one, tmp_path / "copy")
    other = evaluated(tmp_path / "other", 0.9, 0.5, "seed=1", metrics=[iteration(0)])
    _, remarks = compare(read_runs([one, copy, other]), Rows())
    assert remarks == ["copy is the same run as one; leave one out, or the intervals are too narrow."]
    assert remarks[0] in verdict(read_runs([one, copy]))


def test_a_group_with_a_run_without_sft_has_no_mean_before_rlft(tmp_path: Path) -> None:
    taught = evaluated(tmp_path / "taught", 0.9, 0.5)
    alone = evaluated(tmp_path / "alone", 0.1, 0.5)
    write_results(alone / "eval.jsonl", [row for row in read_results(alone / "eval.jsonl") if row.policy != "sft"])
    [both], _ = compare(read_runs([taught, alone]), Rows(), by="rlft.gamma")
    assert (both.mean, both.sft, both.over_sft, both.least_gain) == (0.5, None, None, None)


def test_controls_are_compared_over_seeds(runs: list[Path]) -> None:
    (nine, _), _ = compare(read_runs(runs), Rows(reflections="blank"))
    assert (nine.runs, nine.mean, nine.sft) == (4, pytest.approx(0.01), None)
    assert "reflections shuffled; choose" in refused("compare", *runs, "--reflections", "shuffled")


def test_rows_of_an_earlier_evaluation_are_named(runs: list[Path]) -> None:
    write_ledger(runs[0], eval={"done": False, "inputs": {}})
    assert f"{runs[0].name}: the rows are of an earlier evaluation" in reflectrl("compare", *runs).err
    shown = reflectrl("report", *runs, "--out", runs[0].parent / "report.html")
    assert shown.out.count("the rows are of an earlier evaluation") == 1
    assert (runs[0].parent / "report.html").read_text().count("the rows are of an earlier evaluation") == 2


def test_a_run_s_name_is_one_cell_of_a_markdown_table(tmp_path: Path) -> None:
    run = evaluated(tmp_path / "x|y", 0.9, 0.5)
    head, _, line = reflectrl("compare", run, "--format", "markdown").out.splitlines()
    assert r"90 (x\|y)" in line
    assert len(line.replace(r"\|", "").split("|")) == len(head.split("|"))


@pytest.mark.slow
def test_the_same_numbers_come_as_text_markdown_and_json(runs: list[Path]) -> None:
    text, markdown, whole = (reflectrl("compare", *runs, "--format", form).out for form in ("text", "markdown", "json"))
    assert "65 [22, 92]" in text
    assert "| number_line-nano rlft.gamma=0.9 | 4 | 50 | 65 [22, 92] |" in markdown
    first = json.loads(whole)[0]
    assert [score["success"] for score in first["scores"]] == [0.9, 0.8, 0.7, 0.2]
    low, high = first["iqm_interval"]
    assert 0.2 <= low < first["iqm"] < high <= 0.9


def test_the_numbers_come_as_csv(runs: list[Path], tmp_path: Path) -> None:
    (nine, one), _ = compare(read_runs(runs), Rows())
    alone = reflectrl("compare", *runs, "--csv", "-").out
    first, second = csv.DictReader(alone.splitlines())
    assert (first["group"], first["runs"], first["worst_run"]) == (nine.group, "4", "gamma0.9-seed3")
    numbers = ("sft", "mean", "iqm", "worst", "over_sft", "least_gain")
    assert [float(first[name]) for name in numbers] == [getattr(nine, name) for name in numbers]
    assert nine.iqm_interval is not None
    ends = (*nine.interval, *nine.iqm_interval)
    assert tuple(float(first[name]) for name in ("mean_low", "mean_high", "iqm_low", "iqm_high")) == ends
    assert (second["group"], second["over_sft"], second["over_first"], second["first"]) == (one.group, "", "", "4")
    beside = reflectrl("compare", *runs, "--csv", tmp_path / "table.csv")
    assert beside.out == reflectrl("compare", *runs).out
    assert (tmp_path / "table.csv").read_text() == alone


def test_runs_without_such_a_row_are_left_out(runs: list[Path]) -> None:
    (runs[0] / "eval.jsonl").unlink()
    done = reflectrl("compare", *runs)
    assert (done.code, "gamma0.9-seed0" in done.err) == (0, True)
    assert "greedy" in refused("compare", *runs, "--mode", "greedy")


@pytest.mark.slow
def test_run_folders_are_listed_and_a_damaged_one_says_so(runs: list[Path], tmp_path: Path) -> None:
    (runs[-1] / "eval.jsonl").write_text("{")
    lines = reflectrl("runs", tmp_path).out.splitlines()
    heads = ["run", "stage", "progress", "minutes left", "success now", "best", "evaluated success"]
    assert re.split(" {2,}", lines[0].strip()) == [*heads, "minutes", "dollars"]
    assert [line.split()[0] for line in lines[1:]] == sorted(run.name for run in runs)
    assert "90%" in lines[1]
    assert "cannot be read" in lines[-1]
    assert str(tmp_path / "none") in refused("runs", tmp_path / "none")
