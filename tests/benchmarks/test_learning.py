"""The benchmark of learning over seeds and instruction sets: what it runs, and what it prints of what is done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from learning import ENVIRONMENTS, ROUNDINGS, plan, published_seeds, report
from run_folders import evaluated, iteration

from reflectrl.config import load_recipe
from reflectrl.core.origin import read_origin
from reflectrl.pipeline.sweep import read_seeds
from reflectrl.report.runs import read_runs

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learning.py"
TINY = (
    *("data.samples=20", "sft.reflector.steps=1", "sft.policy.steps=1", "players.reflector.max_new_tokens=2"),
    *("rlft.stages=[{name: main, iterations: 1}]", "rlft.episodes=2"),
    *("eval.episodes=2", "eval.max_tasks=2", "eval.greedy=false", "eval.policies=[sft, rlft]", "eval.controls=[]"),
)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_environment_is_run_with_and_without_reflection_in_each_instruction_set(env: str, tmp_path: Path) -> None:
    seeds = read_seeds(published_seeds(env))
    planned = plan(env, seeds, tmp_path)
    assert len(planned) == len({run.folder for run in planned}) == 2 * len(ROUNDINGS) * len(seeds)
    assert {load_recipe(run.recipe, run.overrides).seed for run in planned[:4]} == {10}
    assert {run.environment["ATEN_CPU_CAPABILITY"] for run in planned} == {"default", "avx2"}


def test_the_table_has_all_runs_and_those_of_each_instruction_set(tmp_path: Path) -> None:
    scores = {("default", 10): 0.9, ("default", 11): 0.7, ("avx2", 10): 0.8}
    for (rounding, seed), success in scores.items():
        name = f"{rounding}-seed{seed}"
        line = [iteration(number, success=success if number < 20 else success - 0.3) for number in range(30)]
        evaluated(tmp_path / f"reflecting-{name}", success, 0.5, f"seed={seed}", metrics=line)
        evaluated(tmp_path / f"silent-{name}", 0.75, 0.5, f"seed={seed}", "players.reflector.player=none")
    text = report("line", read_runs(sorted(tmp_path.iterdir())), "python benchmarks/learning.py line")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert [row[:4] for row in rows] == [
        [title, rounding, runs, "50"]
        for rounding, runs in (("all", "3"), ("default", "2"), ("avx2", "1"))
        for title in ("without reflection", "**Reflect-RL**")
    ]
    _, _, _, _, mean, _, worst, over_sft, gain, over_first, fall = rows[1]
    assert (mean, worst, over_sft, gain) == ("80 ± 25", "70 (reflecting-default-seed11)", "100", "+20")
    assert (over_first, fall) == ("67", "30")
    assert "commit" in text
    assert "Objective of all rows" in text


@pytest.mark.slow
def test_runs_in_both_instruction_sets_are_stopped_and_go_on_in_another_sitting(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "line", "--seeds", "10", "--jobs", "2", "--runs", tmp_path, *TINY]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert first.stderr
    for line in first.stderr:
        if "done in" in line:  # the first of the four runs
            break
    first.terminate()
    said = first.communicate(timeout=120)[1]
    assert (first.returncode, "stopped; the same command continues" in said) == (1, True)
    second = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "4 of 4 runs are done" in second.stderr
    assert "| **Reflect-RL** | avx2 | 1 |" in second.stdout
    folders = sorted((tmp_path / "line").glob("*-seed10"))
    settings = [origin.environment for folder in folders if (origin := read_origin(folder))]
    assert [each["ATEN_CPU_CAPABILITY"] for each in settings] == ["avx2", "default"] * 2
    losses = {(folder / "metrics.jsonl").read_text() for folder in folders}
    assert len(losses) == 4
