"""The benchmark of learning over seeds and instruction sets: its runs, and its tables of finished runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from arms import ENVIRONMENTS, LEARNING, ROUNDINGS, content, plan, publish_rows, published_rows, table
from learning import CONTROLS, SHORT, SHOWN, controls, learned, main, short_report
from reflections import judged
from run_folders import evaluated, iteration
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.core.origin import read_origin
from reflectrl.pipeline.sweep import read_seeds
from reflectrl.report.runs import RunData, read_runs

TINY = (
    *("data.samples=20", "sft.reflector.steps=1", "sft.policy.steps=1", "players.reflector.max_new_tokens=2"),
    *("rlft.lessons=[{name: main, iterations: 1}]", "rlft.episodes=2", "rlft.validation=null"),
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


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_the_published_rows_are_those_of_the_arms(env: str) -> None:
    about = ENVIRONMENTS[env]
    rows = {row["trained"] for row in published_rows(LEARNING, "learning") if row["environment"] == env}
    assert {arm.title for arm in (about.silent, about.reflecting, *about.ablations)} <= rows
    assert env in {row["environment"] for row in published_rows(LEARNING, "reflections")}
    assert list(published_rows(LEARNING, "controls")[0]) == ["environment", "episodes", *CONTROLS]


@pytest.fixture
def runs(tmp_path: Path) -> list[RunData]:
    """Runs that start at 50 % success and end at 90, 70 and 80 % with reflection, and at 75 % without it."""
    scores = {("default", 10): 0.9, ("default", 11): 0.7, ("avx2", 10): 0.8}
    for (rounding, seed), success in scores.items():
        name = f"{rounding}-seed{seed}"
        line = [iteration(number, success=success if number < 20 else success - 0.3) for number in range(30)]
        evaluated(tmp_path / f"reflecting-{name}", success, 0.5, f"seed={seed}", metrics=line)
        evaluated(tmp_path / f"silent-{name}", 0.75, 0.5, f"seed={seed}", "players.reflector.player=none")
    return read_runs(sorted(tmp_path.iterdir()))


def test_a_row_has_the_mean_and_the_worst_run_of_an_arm(runs: list[RunData]) -> None:
    about = ENVIRONMENTS["line"]
    rows = learned("line", (about.silent, about.reflecting, *about.ablations), runs)
    assert [row[:4] for row in rows] == [
        ["line", title, "3", "50"] for title in ("without reflection", "**Reflect-RL**")
    ]
    assert rows[1][4:7] == ["80 [49, 94]", "70", "+20"]


def test_controls_stand_beside_both_policies(runs: list[RunData]) -> None:
    rows = {name: dict(zip(CONTROLS, cells, strict=True)) for _, name, *cells in controls("line", runs)}
    assert rows["sampled"]["**RLFT**"] == "**80** ± 25"
    assert rows["sampled"]["RLFT, without"] == "**75** ± 0"
    assert rows["sampled"]["blank"] == "**1** ± 0"
    assert rows["greedy"]["blank"] == "-"


def test_the_front_page_has_the_worst_runs(runs: list[RunData], tmp_path: Path) -> None:
    page = tmp_path / "learning.md"
    heads = {
        "learning": ("environment", "trained", *SHOWN, "minutes"),
        "controls": ("environment", "episodes", *CONTROLS),
    }
    page.write_text("".join(f"<!-- {mark} -->\n{table(each, [])}\n<!-- end -->\n" for mark, each in heads.items()))
    about = ENVIRONMENTS["line"]
    publish_rows(page, "learning", learned("line", (about.silent, about.reflecting), runs))
    rates = dict.fromkeys(CONTROLS, "-") | {"SFT": "45", "**RLFT**": "85", "RLFT, without": "77"}
    publish_rows(page, "controls", [["line", "greedy", *rates.values()]])
    head, (env, *row) = (
        line.strip("| ").split(" | ") for line in short_report(page).splitlines() if line.startswith("| ")
    )
    assert env == "Number line"
    assert dict(zip(head, row, strict=True)) == {
        "recipe": "`number_line/nano`",
        "runs": "3",
        "SFT": "50 (45)",
        "**Reflect-RL**": "**80 [49, 94]** (85)",
        "worst run": "**70**",
        "least gain": "+20",
        "without reflection": "75 [70, 80] (77)",
    }


def test_the_front_page_shows_the_published_rows() -> None:
    assert content(LEARNING.parents[2] / "README.md", SHORT) == short_report(LEARNING)


@pytest.mark.slow
@pytest.mark.usefixtures("_warm_runs")
def test_one_command_trains_the_missing_run_of_both_arms_in_both_instruction_sets_and_prints_the_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published, about = LEARNING.read_text(), ENVIRONMENTS["line"]
    *done, missing = plan("line", (about.silent, about.reflecting), "10", tmp_path, TINY)
    for run in done:  # in this process, which has imported what a new one would have to
        play_stages(load_recipe(run.recipe, run.overrides), run.folder)
    assert missing.folder == tmp_path / "line" / "reflecting-avx2-seed10"
    monkeypatch.setattr(sys, "argv", ["learning.py", "line", "--seeds", "10", "--runs", str(tmp_path), *TINY])
    assert main() == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| line ")]
    assert [line.split(" | ")[1:3] for line in printed[:2]] == [["without reflection", "2"], ["**Reflect-RL**", "2"]]
    assert [line.split(" | ")[1] for line in printed[2:]] == ["sampled", "greedy"]
    assert LEARNING.read_text() == published  # a quick look publishes nothing
    origin = read_origin(missing.folder)
    assert origin is not None
    assert origin.environment["ATEN_CPU_CAPABILITY"] == "avx2"
    episodes = judged(missing.folder)
    assert len(episodes) == 2
    assert not any(move.right for moves in episodes for move in moves)  # a reflection cannot be as short as two tokens
