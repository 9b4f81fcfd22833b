"""The benchmark of learning over seeds and instruction sets: its runs, and its tables of finished runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from arms import ENVIRONMENTS, ROUNDINGS, plan, publish
from learning import SILENT, ablations_report, evaluations, published, report, short_report
from reflections import judged
from run_folders import evaluated, iteration

from reflectrl.config import load_recipe
from reflectrl.core.origin import read_origin
from reflectrl.pipeline.sweep import read_seeds
from reflectrl.report.runs import Run, read_runs

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "learning.py"
TINY = (
    *("data.samples=20", "sft.reflector.steps=1", "sft.policy.steps=1", "players.reflector.max_new_tokens=2"),
    *("rlft.stages=[{name: main, iterations: 1}]", "rlft.episodes=2"),
    *("eval.episodes=2", "eval.max_tasks=2", "eval.greedy=false", "eval.policies=[sft, rlft]", "eval.controls=[]"),
)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_environment_is_run_with_and_without_reflection_in_each_instruction_set(env: str, tmp_path: Path) -> None:
    about = ENVIRONMENTS[env]
    planned = plan(env, (about.silent, about.reflecting), runs=tmp_path)
    assert len(planned) == len({run.folder for run in planned}) == 2 * len(ROUNDINGS) * len(read_seeds(about.seeds))
    first_seed = read_seeds(about.seeds)[0]
    assert {load_recipe(run.recipe, run.overrides).seed for run in planned[:4]} == {first_seed}
    assert {run.environment["ATEN_CPU_CAPABILITY"] for run in planned} == {"default", "avx2"}


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_ablation_differs_from_the_recipe_it_is_compared_with(env: str, tmp_path: Path) -> None:
    about = ENVIRONMENTS[env]
    planned = plan(env, (about.silent, about.reflecting, *about.ablations), "10", tmp_path)
    # the recipes of one instruction set
    recipes = [load_recipe(run.recipe, run.overrides) for run in planned if "-default-" in run.folder.name]
    settings = [each.model_dump(exclude={"name", "description", "eval"}) for each in recipes]
    assert all(each not in settings[:place] for place, each in enumerate(settings))
    assert {arm.seeds for arm in about.ablations} == {about.ablated.seeds}


def test_the_success_without_reflection_is_that_of_the_published_table() -> None:
    assert re.fullmatch(r"\*\*\d+\*\* ± \d+", published("taxi", SILENT))
    assert published("taxi", "no such row") == "-"


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Runs that start at 50 % success and end at 90, 70 and 80 % with reflection, and at 75 % without it."""
    scores = {("default", 10): 0.9, ("default", 11): 0.7, ("avx2", 10): 0.8}
    for (rounding, seed), success in scores.items():
        name = f"{rounding}-seed{seed}"
        line = [iteration(number, success=success if number < 20 else success - 0.3) for number in range(30)]
        evaluated(tmp_path / f"reflecting-{name}", success, 0.5, f"seed={seed}", metrics=line)
        evaluated(tmp_path / f"silent-{name}", 0.75, 0.5, f"seed={seed}", "players.reflector.player=none")
    return read_runs(sorted(tmp_path.iterdir()))


def cells(text: str) -> list[list[str]]:
    """Return the rows of all tables in ``text``, including their heads."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]


def test_the_table_has_all_runs_and_those_of_each_instruction_set(runs: list[Run]) -> None:
    text = report("line", runs, "python benchmarks/learning.py line")
    rows = cells(text)[1:7]
    assert [row[:4] for row in rows] == [
        [title, rounding, count, "50"]
        for rounding, count in (("all", "3"), ("default", "2"), ("avx2", "1"))
        for title in ("without reflection", "**Reflect-RL**")
    ]
    _, _, _, _, mean, _, worst, over_sft, gain, over_first, fall, _, steps = rows[1]
    assert (mean, worst, over_sft, gain) == ("80 [49, 94]", "70 (reflecting-default-seed11)", "100", "+20")
    assert (over_first, fall, steps) == ("67", "30", "300")
    assert "commit" in text
    assert "Objective of all rows" in text


def test_controls_stand_beside_both_policies_and_what_was_not_played_is_left_out(runs: list[Run]) -> None:
    found = {first: rest for first, *rest in cells(evaluations("line", runs))}
    assert found["its policy, reflections blank"] == ["**1** ± 0", "1", "-", "1.0"]
    assert found["**Reflect-RL**"][:2] == ["**80** ± 25", "70"]
    assert "random" not in found


def test_ablations_are_compared_with_reflect_rl(runs: list[Run], tmp_path: Path) -> None:
    folder = tmp_path / "menu_first-avx2-seed10"
    (first,) = read_runs([evaluated(folder, 0.75, 0.5, "seed=10", "prompt.menu=first", metrics=[iteration(0)])])
    rows = cells(ablations_report("line", [*runs, first], "python benchmarks/learning.py line --ablations"))[1:]
    assert [row[:2] for row in rows] == [["**Reflect-RL**", "3"], ["menu first", "1"]]
    assert rows[1][8] == "-"  # one run is no evidence


def test_the_front_page_has_the_worst_run_of_each_table_beside_the_mean(runs: list[Run], tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("".join(f"<!-- learning_{env} -->\nNot measured yet.\n<!-- end -->\n" for env in ENVIRONMENTS))
    publish(page, "learning_line", report("line", runs, "python benchmarks/learning.py line"))
    head, (env, *row) = cells(short_report(page))
    assert env == "Number line"
    assert dict(zip(head, row, strict=True)) == {
        "recipe": "`number_line/nano`",
        "runs": "3",
        "SFT": "50",
        "**Reflect-RL**": "**80 [49, 94]**",
        "worst run": "**70**",
        "least gain": "+20",
        "without reflection": "75 [70, 80]",
        "its worst run": "75",
    }


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
    episodes = judged(folders[0])
    assert len(episodes) == 2
    assert not any(move.right for moves in episodes for move in moves)  # a reflection cannot be as short as two tokens
