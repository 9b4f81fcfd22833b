"""Evaluation on several splits, on parts of the tasks, and with other reflectors."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
from faulty import restored_registry
from run_folders import unfinish
from scripted_endpoint import ScriptedEndpoint
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.config.trust import remember
from reflectrl.core import InvalidInput, Task, register_env
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline import STAGES
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.report.tables import print_table
from reflectrl.report.verdict import verdict
from reflectrl.rollout.iteration import episode_metrics
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import EvalRow, episodes_file, read_results
from reflectrl.share.export import export_run

pytestmark = pytest.mark.slow

PLAYED = ("eval.policies=[random, rlft]", "eval.greedy=false", "eval.max_tasks=null")


def recipe(*overrides: str) -> Recipe:
    return small_recipe(*PLAYED, *overrides)


def go_on(run: Path, *overrides: str) -> str:
    """Run the evaluation and return the output."""
    return play_stages(recipe(*overrides), run, "eval")


def rows_of(run: Path) -> list[EvalRow]:
    return read_results(run / "eval.jsonl")


@pytest.fixture(scope="module")
def finished(trained_run: TrainedRuns) -> Path:
    return trained_run(*PLAYED)


@pytest.fixture(scope="module")
def other(trained_run: TrainedRuns) -> Path:
    """A run with another reflector."""
    return trained_run("seed=7", stages=STAGES[:2])


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run that a test may evaluate again."""
    return shutil.copytree(finished, tmp_path / "run")


def test_zero_shot_is_the_untrained_policy_without_reflections(run) -> None:
    go_on(run, "eval.policies=[zero_shot, base, rlft]")
    assert [(row.policy, row.reflections) for row in rows_of(run)] == [
        ("zero_shot", "none"),
        ("base", "local"),
        ("rlft", "local"),
    ]
    said = [
        {turn.reflection for episode in read_trajectories(run / episodes_file(row, 1))[1] for turn in episode.turns}
        for row in rows_of(run)
    ]
    assert [words == {None} for words in said] == [True, False, False]
    assert verdict(read_runs([run]))[0].startswith("Zero-shot, before any training and without reflections,")


def test_cut_prompts_are_counted_for_local_policies(finished: Path, tmp_path: Path) -> None:
    assert {row.policy: row.cut_prompts for row in rows_of(finished)} == {"random": None, "rlft": 0.0}
    tight = ("players.reflector.player=none", "prompt.history=8", "model.max_length=20", "eval.policies=[random, sft]")
    play_stages(recipe(*tight), tmp_path / "run", *STAGES[:2], "eval")
    of_random, of_sft = (row.cut_prompts for row in rows_of(tmp_path / "run"))
    assert of_random is None
    assert of_sft is not None
    assert 0 < of_sft < 1  # the first prompt of an episode has no history


# ---- splits and tasks -----------------------------------------------------------------------------------------------


def test_each_split_and_group_is_played_once_and_shown_by_itself(run, finished, capsys):
    said = go_on(run, "eval.split=[validation, test]", "eval.groups=[0-, 2-]")
    assert re.search(r"success on split validation: random \d+%, rlft \d+%; split test: random \d+%, rlft \d+%", said)
    rows = rows_of(run)
    assert [(row.policy, row.split, row.group) for row in rows] == list(
        product(("random", "rlft"), ("validation", "test"), ("", "0-", "2-"))
    )
    assert [row for row in rows if row.split == "test" and not row.group] == rows_of(finished)
    for row in rows:
        _, played = read_trajectories(run / episodes_file(row, 2))
        part = [trajectory for trajectory in played if trajectory.task.id.startswith(row.group)]
        assert 0 < len(part) <= len(played)
        assert row.metrics == episode_metrics(part)
        assert row.tasks == len({trajectory.task.id for trajectory in part})
    print_table(read_runs([run]))
    head, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert {"split", "tasks"} <= set(head)
    assert [line[-9:-7] for line in lines] == [[s, g] for s in ("validation", "test") for g in ("all", "0-", "2-")] * 2
    page = report_page(read_runs([run]))
    assert "rlft, sampled, reflections by local, split validation" in page
    assert "<td>2-</td>" in page
    card = export_run(run).joinpath("README.md").read_text()
    assert (card.count("| validation |"), card.count("| 2- |")) == (6, 4)


class Alike(NumberLine):
    """Line on which two of the test tasks begin like training tasks, and those for validation never do."""

    name = "alike"
    observable = False

    def tasks(self, split: str) -> Sequence[Task]:
        again = super().tasks("train")[:2] if split == "test" else []
        again = [Task(f"{task.id} again", task.options) for task in again]
        return [*again, *super().tasks(split)]

    def start(self, task: Task) -> None:
        super().start(Task(task.id.removesuffix(" again"), task.options))


def test_tasks_that_begin_like_training_tasks_are_counted_and_shown(tmp_path: Path, capsys) -> None:
    with restored_registry():
        register_env("alike", Alike)
        settings = ("env.name=alike", "eval.split=[validation, test]", "eval.policies=[random]", "eval.episodes=40")
        said = play_stages(small_recipe(*PLAYED, *settings), tmp_path / "run", *STAGES[:2], "eval")
    tasks = rows_of(tmp_path / "run")[1].tasks
    of_test = f"2 of {tasks} tasks begin like a training task"
    assert re.search(rf"split validation: random \d+%; split test: random \d+% \({of_test}\)", said)
    assert [row.like_training for row in rows_of(tmp_path / "run")] == [0, 2]
    runs, warning = read_runs([tmp_path / "run"]), f"Split test: {of_test}, so they are no new states"
    print_table(runs)
    assert warning in capsys.readouterr().out
    assert warning in report_page(runs)


def test_an_evaluation_that_was_killed_tells_splits_apart(run):
    split = "eval.split=[validation, test]"
    go_on(run, split)
    whole = (run / "eval.jsonl").read_bytes()
    (run / "eval.jsonl").rename(run / "eval.partial.jsonl")
    (run / "eval.partial.jsonl").write_bytes(whole.splitlines(keepends=True)[0])
    kept = run / "trajectories" / "eval-random-none-sampled-validation.jsonl"
    before = kept.stat().st_mtime_ns
    unfinish(run, "eval")
    go_on(run, split)
    assert (run / "eval.jsonl").read_bytes() == whole
    assert kept.stat().st_mtime_ns == before


def test_tasks_can_be_chosen_by_the_beginning_of_their_ids(run, capsys):
    assert "'d9/'" in go_on(run, "eval.tasks=[0-, 2-]", "eval.groups=[d9/]")  # no task of that group, so no row
    for row in rows_of(run):
        _, played = read_trajectories(run / episodes_file(row, 1))
        assert {trajectory.task.id[:2] for trajectory in played} == {"0-", "2-"}
        assert (row.chosen, row.group) == (("0-", "2-"), "")
    print_table(read_runs([run]))
    assert capsys.readouterr().out.count("0-, 2-") == 2


@pytest.mark.parametrize(("change", "fact"), [("split=[test, hidden]", "'hidden'"), ("tasks=[d9/]", "'d9/'")])
def test_unknown_splits_and_tasks_are_refused(change, fact, run):
    before = {name: (run / name).read_bytes() for name in ("recipe.yaml", "stages.json", "eval.jsonl")}
    with pytest.raises(InvalidInput, match=fact):
        go_on(run, f"eval.{change}")
    assert not (run / "eval.partial.jsonl").exists()
    assert {name: (run / name).read_bytes() for name in before} == before  # the recipe is that of the results


# ---- reflectors ------------------------------------------------------------------------------------------------------


def said_by(run: Path, name: str) -> list[str | None]:
    _, played = read_trajectories(run / "trajectories" / f"eval-rlft-{name}-sampled.jsonl")
    return [turn.reflection for trajectory in played for turn in trajectory.turns]


def test_reflectors_of_other_runs_and_exports_advise_the_policy(run, finished, other, capsys):
    folder = export_run(finished, run.parent / "agent")
    given = f"{{name: same, run: {run}}}, {{name: wiser, run: {other}}}, {{name: exported, run: {folder}}}"
    go_on(run, f"eval.reflectors=[{given}]", "eval.greedy=true")
    names = ("local", "same", "wiser", "exported")
    assert [(row.policy, row.reflections, row.mode) for row in rows_of(run)] == [
        ("random", "none", "sampled"),
        *(("rlft", who, mode) for who in names for mode in ("sampled", "greedy")),
    ]
    assert said_by(run, "same") == said_by(run, "exported") == said_by(run, "local") != said_by(run, "wiser")
    success = {row.reflections: row.metrics.success for row in rows_of(run) if row.mode == "sampled"}
    assert success["same"] == success["local"]
    print_table(read_runs([run]))
    assert "rlft    wiser" in capsys.readouterr().out
    assert "rlft, greedy, reflections by wiser" in report_page(read_runs([run]))


def test_an_exchanged_run_is_asked_again(run, finished, other, tmp_path):
    lender = shutil.copytree(other, tmp_path / "lender")
    given = f"eval.reflectors=[{{name: lent, run: {lender}}}]"
    go_on(run, given)
    assert "skipped" in go_on(run, given)
    shutil.rmtree(lender)
    shutil.copytree(finished, lender)
    assert "skipped" not in go_on(run, given)
    assert said_by(run, "lent") == said_by(run, "local")
    weights = lender / "reflector" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InvalidInput, match=r"lender/reflector, .*'sft'"):
        go_on(run, given)


def test_a_chat_model_advises_the_policy_and_is_paid_once(run, endpoint: ScriptedEndpoint):
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


def test_a_run_that_cannot_lend_a_reflector_is_refused_before_any_stage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, override in (("alone", "players.reflector.player=none"), ("longer", "prompt.history=3")):
        (tmp_path / name / "reflector").mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").write_text(dump_recipe(recipe(override)))
    (tmp_path / "early" / "reflector").mkdir(parents=True)  # the one that RLFT trains is not there yet
    theirs = load_recipe("auto_explore/nano_cotrained")
    (tmp_path / "early" / "recipe.yaml").write_text(dump_recipe(theirs))
    remember(tmp_path / "early", theirs, dump_recipe(theirs))  # as the stages of this run did
    facts = {"gone": "gone", "alone": "alone", "longer": "history=3.*history=1", "early": "early.*`reflectrl rlft`"}
    for lender, fact in facts.items():
        with pytest.raises(InvalidInput, match=fact):
            play_stages(recipe(f"eval.reflectors=[{{name: x, run: {lender}}}]"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- the recipe ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "fact"),
    [
        ("eval.split=[]", "split is []"),
        ("eval.split=[test, test]", "split has 'test'"),
        ("eval.split=../test", "'../test'"),
        ("eval.split=3", "eval.split: given 3"),
        ("eval.reflectors=[{name: x, run: a, endpoint: {model: b}}]", "eval.reflectors"),
        ("eval.reflectors=[{name: blank, run: a}]", "'blank'"),
        ("eval.reflectors=[{name: a/b, run: a}]", "'a/b'"),
        ("eval.reflectors=[{name: x, run: a}, {name: x, run: b}]", "reflectors has 'x'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(override, fact):
    with pytest.raises(InvalidInput, match=re.escape(fact)):
        recipe(override)


def test_other_reflectors_need_a_policy_that_was_trained_with_one():
    for change in ("players.reflector.player=none", "eval.policies=[random]"):
        with pytest.raises(InvalidInput, match=r"eval\.reflectors"):
            recipe("eval.reflectors=[{name: x, run: a}]", change)


def test_chance_and_the_expert_are_measured_before_any_training_and_again_after_it(other: Path, tmp_path: Path) -> None:
    play_stages(recipe("eval.policies=[random, expert]", "eval.episodes=20"), tmp_path, "eval")
    first = {row.policy: row.metrics.success for row in rows_of(tmp_path)}
    assert first["random"] < first["expert"] == 1
    with pytest.raises(InvalidInput, match="begun with other inputs"):
        play_stages(recipe("eval.policies=[random]", "seed=9"), other, "eval")
    assert "evaluating again" in play_stages(recipe("eval.episodes=20"), tmp_path, *STAGES)
    assert {row.policy for row in rows_of(tmp_path)} == {"random", "rlft"}


def test_a_policy_is_evaluated_before_rlft_and_again_after_it(other: Path, tmp_path: Path) -> None:
    run = shutil.copytree(other, tmp_path / "run")
    early = ("seed=7", "eval.greedy=false", "eval.controls=[]")
    with pytest.raises(InvalidInput, match="needs 'rlft'"):
        play_stages(small_recipe(*early), run, "eval")
    play_stages(small_recipe(*early, "eval.policies=[sft]"), run, "eval")
    assert {row.policy for row in rows_of(run)} == {"sft"}
    said = play_stages(small_recipe(*early, "eval.policies=[sft, rlft]"), run, "rlft", "eval")
    assert "evaluating again" in said
    assert {row.policy for row in rows_of(run)} == {"sft", "rlft"}
