"""What ``eval`` plays beyond the recipe's own rows: several splits, parts of the tasks, and other reflectors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from scripted_endpoint import ScriptedEndpoint
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.pipeline import STAGES
from reflectrl.report import print_table
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.rollout.metrics import episode_metrics
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import EvalRow, episodes_file, read_results
from reflectrl.sharing.export import export_run

TASKS = "eval.groups=[0-, 2-]"
PLAYED = ("eval.policies=[random, rlft]", "eval.greedy=false", "eval.max_tasks=null")


def recipe(*overrides: str) -> Recipe:
    return small_recipe(*PLAYED, *overrides)


def go_on(run: Path, *overrides: str) -> str:
    """Evaluate; returns what is said."""
    return play_stages(recipe(*overrides), run, "eval")


def rows_of(run: Path) -> list[EvalRow]:
    return read_results(run / "eval.jsonl")


@pytest.fixture(scope="module")
def finished(trained_run: TrainedRuns) -> Path:
    return trained_run(*PLAYED)


@pytest.fixture(scope="module")
def other(trained_run: TrainedRuns) -> Path:
    """A run whose reflector was trained otherwise."""
    return trained_run("seed=7", "sft.reflector.steps=9", stages=STAGES[:2])


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be evaluated again."""
    return shutil.copytree(finished, tmp_path / "run")


# ---- splits ----------------------------------------------------------------------------------------------------------


def test_each_split_is_played_and_shown_by_itself(run, finished, capsys):
    go_on(run, "eval.split=[validation, test]")
    rows = rows_of(run)
    assert [(row.policy, row.split) for row in rows] == [
        (policy, split) for policy in ("random", "rlft") for split in ("validation", "test")
    ]
    assert [row for row in rows if row.split == "test"] == rows_of(finished)
    for row in rows:
        played = read_trajectories(
            run / "trajectories" / f"eval-{row.policy}-{row.reflections}-sampled-{row.split}.jsonl"
        )
        assert episode_metrics(played[1]) == row.metrics
    print_table([run])
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head[head.index("split") - 1] == "mode"
    assert [line[-8] for line in lines] == ["validation", "test"] * 2
    page = report_page(read_runs([run]))
    assert "rlft, sampled, reflections by local, split validation" in page
    assert export_run(run).joinpath("README.md").read_text().count("| validation |") == 2


def test_a_split_that_the_environment_lacks_is_refused_before_anything_is_played(run):
    with pytest.raises(InvalidInput, match="'hidden'"):
        go_on(run, "eval.split=[test, hidden]")
    assert not (run / "eval.partial.jsonl").exists()


def test_an_evaluation_that_was_killed_tells_splits_apart(run):
    go_on(run, "eval.split=[validation, test]", TASKS)
    whole = (run / "eval.jsonl").read_bytes()
    rows = [line for line in whole.splitlines(keepends=True) if not json.loads(line)["group"]]
    (run / "eval.jsonl").unlink()
    (run / "eval.partial.jsonl").write_bytes(rows[0])
    kept = run / "trajectories" / "eval-random-none-sampled-validation.jsonl"
    before = kept.stat().st_mtime_ns
    ledger = json.loads((run / "stages.json").read_text())
    ledger["eval"]["done"] = False
    (run / "stages.json").write_text(json.dumps(ledger))
    go_on(run, "eval.split=[validation, test]", TASKS)
    assert (run / "eval.jsonl").read_bytes() == whole
    assert kept.stat().st_mtime_ns == before


# ---- tasks -----------------------------------------------------------------------------------------------------------


def test_groups_of_tasks_get_rows_from_the_same_episodes(run, finished, capsys):
    go_on(run, TASKS)
    rows = rows_of(run)
    assert [row for row in rows if not row.group] == rows_of(finished)
    for row in rows:
        _, played = read_trajectories(run / episodes_file(row, 1))
        part = [trajectory for trajectory in played if trajectory.task.id.startswith(row.group)]
        assert 0 < len(part) <= len(played)
        assert row.metrics == episode_metrics(part)
        assert row.tasks == len({trajectory.task.id for trajectory in part})
    assert [row.group for row in rows] == ["", "0-", "2-"] * 2
    print_table([run])
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert "tasks" in head
    assert [line[-8] for line in lines] == ["all", "0-", "2-"] * 2
    assert "<td>2-</td>" in report_page(read_runs([run]))
    card = export_run(run).joinpath("README.md").read_text()
    assert card.count("| 2- |") == 2
    assert card.count("tasks of the split test") == 1


def test_tasks_can_be_chosen_by_the_beginning_of_their_ids(run, capsys):
    go_on(run, "eval.tasks=[0-, 2-]")
    for row in rows_of(run):
        _, played = read_trajectories(run / episodes_file(row, 1))
        assert {trajectory.task.id[:2] for trajectory in played} == {"0-", "2-"}
        assert row.chosen == ("0-", "2-")
    print_table([run])
    assert capsys.readouterr().out.count("0-, 2-") == 2


def test_tasks_that_there_are_not_are_refused_before_anything_is_played(run):
    with pytest.raises(InvalidInput, match="'d9/'"):
        go_on(run, "eval.tasks=[d9/]")
    assert not (run / "eval.partial.jsonl").exists()


def test_a_group_that_no_task_is_in_has_no_row_and_a_line_says_so(run, finished):
    assert "'d9/'" in go_on(run, "eval.groups=[d9/]")
    assert rows_of(run) == rows_of(finished)


# ---- reflectors ------------------------------------------------------------------------------------------------------


def said_by(run: Path, name: str) -> list[str | None]:
    _, played = read_trajectories(run / "trajectories" / f"eval-rlft-{name}-sampled.jsonl")
    return [turn.reflection for trajectory in played for turn in trajectory.turns]


def test_another_run_s_reflector_advises_the_policy(run, other, capsys):
    go_on(run, f"eval.reflectors=[{{name: same, run: {run}}}, {{name: wiser, run: {other}}}]", "eval.greedy=true")
    rows = [(row.policy, row.reflections, row.mode) for row in rows_of(run)]
    assert rows == [
        ("random", "none", "sampled"),
        *(("rlft", who, mode) for who in ("local", "same", "wiser") for mode in ("sampled", "greedy")),
    ]
    assert said_by(run, "same") == said_by(run, "local")
    assert said_by(run, "wiser") != said_by(run, "local")
    success = {row.reflections: row.metrics.success for row in rows_of(run) if row.mode == "sampled"}
    assert success["same"] == success["local"]
    print_table([run])
    assert "rlft    wiser" in capsys.readouterr().out
    page = report_page(read_runs([run]))
    assert "rlft, greedy, reflections by wiser" in page


def test_an_exported_agent_lends_its_reflector(run, finished):
    folder = export_run(finished, run.parent / "agent")
    go_on(run, f"eval.reflectors=[{{name: exported, run: {folder}}}]")
    assert said_by(run, "exported") == said_by(run, "local")


def test_a_run_that_was_exchanged_is_asked_again(run, finished, other, tmp_path):
    lender = shutil.copytree(other, tmp_path / "lender")
    given = f"eval.reflectors=[{{name: lent, run: {lender}}}]"
    go_on(run, given)
    assert "skipped" in go_on(run, given)
    shutil.rmtree(lender)
    shutil.copytree(finished, lender)
    assert "skipped" not in go_on(run, given)
    assert said_by(run, "lent") == said_by(run, "local")


def test_a_damaged_reflector_of_another_run_is_refused(run, other, tmp_path):
    lender = shutil.copytree(other, tmp_path / "lender")
    weights = lender / "reflector" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(InvalidInput, match=r"lender/reflector/model\.safetensors .*'sft'"):
        go_on(run, f"eval.reflectors=[{{name: wiser, run: {lender}}}]")


def test_a_chat_model_advises_the_policy_and_is_paid(run, endpoint: ScriptedEndpoint):
    endpoint.reply = lambda chat: "Go to the right."  # noqa: ARG005
    asked = f"base_url: {endpoint.url}, price: {{prompt: 1, completion: 1}}"
    given = f"eval.reflectors=[{{name: gpt-4, endpoint: {{{asked}}}}}]"
    assert "calls" in go_on(run, given)
    assert set(said_by(run, "gpt-4")) == {"Go to the right."}
    assert (run / "calls" / "eval-gpt-4" / "replies.jsonl").is_file()
    [calls] = read_runs([run])[0].calls
    assert (calls.role, calls.dollars is not None and calls.dollars > 0) == ("eval-gpt-4", True)
    requests = len(endpoint.requests)
    (run / "eval.jsonl").unlink()
    go_on(run, given)
    assert len(endpoint.requests) == requests


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ("{name: x, run: gone}", "gone"),
        ("{name: x, run: alone}", "alone"),
        ("{name: x, run: longer}", "history=3.*history=1"),
    ],
)
def test_a_run_that_cannot_lend_a_reflector_is_refused_before_any_stage(given, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, *overrides in (("alone", "players.reflector.player=none"), ("longer", "prompt.history=3")):
        (tmp_path / name / "reflector").mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").write_text(dump_recipe(recipe(*overrides)))
    with pytest.raises(InvalidInput, match=wrong):
        play_stages(recipe(f"eval.reflectors=[{given}]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- the recipe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "wrong"),
    [
        ("eval.split=[]", "split is []"),
        ("eval.split=[test, test]", "split has 'test'"),
        ("eval.split=../test", "'../test'"),
        ("eval.split=3", "eval.split: given 3"),
        ("eval.groups=[a, a]", "groups has 'a'"),
        ("eval.reflectors=[{name: x}]", "eval.reflectors"),
        ("eval.reflectors=[{name: x, run: a, endpoint: {model: b}}]", "eval.reflectors"),
        ("eval.reflectors=[{name: blank, run: a}]", "'blank'"),
        ("eval.reflectors=[{name: a/b, run: a}]", "'a/b'"),
        ("eval.reflectors=[{name: x, run: a}, {name: x, run: b}]", "reflectors has 'x'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(override, wrong):
    with pytest.raises(InvalidInput, match=wrong.replace("[", r"\[")):
        recipe(override)


def test_other_reflectors_need_a_policy_that_was_trained_with_one():
    given = "eval.reflectors=[{name: x, run: a}]"
    for change in ("players.reflector.player=none", "eval.policies=[random]"):
        with pytest.raises(InvalidInput, match="eval.reflectors"):
            recipe(given, change)


def test_the_company_s_questions_and_the_families_are_told_apart_by_shipped_recipes():
    assert load_recipe("auto_explore/nano").eval.groups == ["d1/", "d2/"]
    assert len(load_recipe("alfworld/families").eval.groups) == 6
    assert load_recipe("auto_explore/nano_depth_1").eval.tasks == ["d0/", "d1/"]
