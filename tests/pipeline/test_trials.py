"""Trials: the memory of later trials, the tasks solved by any of them, and that a kill changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from run_folders import unfinish
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.core import InvalidInput, Trajectory
from reflectrl.core.jsonl import append_jsonl
from reflectrl.prompts.prompt import SUCCEEDED
from reflectrl.report import report
from reflectrl.report.runs import read_runs
from reflectrl.report.tables import print_table
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.results import TrialRow, read_results, read_trials, summarise

BRIEF = ("eval.policies=[rlft]", "eval.greedy=false")
SHORT = (*BRIEF, "eval.trials.policies=[rlft]", "eval.trials.count=2")


def episodes(run: Path, name: str) -> list[Trajectory]:
    return read_trajectories(run / "trajectories" / f"eval-{name}.jsonl")[1]


def remembered(played: Trajectory) -> str:
    return "\n".join(turn.said["memory"].text for turn in played.turns if "memory" in turn.said)


def rows(run: Path, *, memory: bool = True, group: str = "") -> list[TrialRow]:
    return [row for row in read_trials(run / "trials.jsonl") if (row.memory, row.group) == (memory, group)]


@pytest.mark.slow
def test_later_trials_remember_what_succeeded(trained_run: TrainedRuns):
    run = trained_run(*SHORT, "sft.policy.steps=25", name="rap/nano_trials")
    first, second = (episodes(run, f"rlft-local-trial{number}") for number in (1, 2))
    assert {turn.said.get("memory") for played in first for turn in played.turns} == {None}
    starts = {played.task.id: played.turns[0].observation.text for played in first if played.success}
    assert 0 < len(starts) < len(first)
    for played in second:
        shown = remembered(played)
        assert any(text in shown for task, text in starts.items() if task != played.task.id)
        others = [turn for each in first if each.success and each.task.id != played.task.id for turn in each.turns]
        own = {starts.get(played.task.id, "nothing")} - {turn.observation.text for turn in others}
        assert not any(text in shown for text in own)
    assert [row.remembered for row in rows(run)] == [0, len(starts)]
    assert [row.remembered for row in rows(run, memory=False)] == [0, 0]
    alone = episodes(run, "rlft-local-alone1")
    assert [played.actions for played in alone] == [played.actions for played in first]  # the same draws


@pytest.mark.slow
def test_of_equally_similar_episodes_the_shortest_is_shown(trained_run: TrainedRuns) -> None:
    memory = ("eval.memory.key=none", "eval.memory.weights.task=0", "eval.memory.episodes=1")
    run = trained_run(*SHORT, *memory, "sft.policy.steps=25", "seed=1", name="rap/nano_trials")
    first, second = (episodes(run, f"rlft-local-trial{number}") for number in (1, 2))
    won = sorted((played for played in first if played.success), key=lambda played: len(played.turns))
    assert won[0] is not next(played for played in first if played.success)  # the oldest is not the shortest
    for played in second:
        shortest = next(each for each in won if each.task.id != played.task.id)
        assert shortest.turns[0].observation.text in remembered(played)


@pytest.mark.slow
def test_the_paper_counts_a_task_that_any_trial_so_far_has_solved(
    trained_run: TrainedRuns, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = trained_run(*SHORT, "sft.policy.steps=25", name="rap/nano_trials")
    solved: set[str] = set()
    for row in rows(run):
        played = episodes(run, f"rlft-local-trial{row.trial}")
        assert row.metrics.success == sum(each.success for each in played) / len(played)
        solved |= {each.task.id for each in played if each.success}
        assert row.solved == len(solved) / len(played)
    print_table(read_runs([run]))
    table = capsys.readouterr().out
    assert f"{run.name}  rlft    with     test   2" in table
    page = report([run], tmp_path / "report.html").read_text()
    assert "<h4>Trials</h4>" in page
    assert "solved so far" in page


@pytest.mark.slow
def test_killed_trials_go_on_after_the_last_whole_one(trained_run: TrainedRuns, tmp_path: Path) -> None:
    whole, run = trained_run(*SHORT, "sft.policy.steps=25", name="rap/nano_trials"), tmp_path / "run"
    shutil.copytree(whole, run)
    [sampled] = read_results(run / "eval.jsonl")
    played = episodes(run, "rlft-local-trial1")
    first = replace(summarise("rlft", "local", "trial1", "test", played), benchmark=sampled.benchmark)
    append_jsonl(run / "eval.partial.jsonl", [sampled, first])
    with (run / "eval.partial.jsonl").open("a") as file:
        file.write('{"half')
    for name in ("eval.jsonl", "trials.jsonl"):
        (run / name).unlink()
    shutil.copy(run / "trajectories" / "eval-rlft-local-trial2.jsonl", tmp_path)
    (run / "trajectories" / "eval-rlft-local-trial2.jsonl").unlink()
    unfinish(run, "eval")
    play_stages(small_recipe(*SHORT, "sft.policy.steps=25", name="rap/nano_trials"), run, "eval")
    for name in ("trials.jsonl", "trajectories/eval-rlft-local-trial2.jsonl"):
        assert (run / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_an_evaluation_without_trials_leaves_none_behind(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run(*SHORT, "sft.policy.steps=25", name="rap/nano_trials"), run)
    recipe = small_recipe(*BRIEF, "sft.policy.steps=25", "eval.trials=null", name="rap/nano_trials")
    play_stages(recipe, run, "eval")
    assert not (run / "trials.jsonl").exists()
    assert any(remembered(played) for played in episodes(run, "rlft-local-sampled"))  # eval.memory; training had none
    assert not any(remembered(played) for played in read_trajectories(run / "trajectories" / "rlft-00003.jsonl")[1])


@pytest.mark.slow
def test_a_memory_may_compare_by_the_states_of_the_policy_s_base(trained_run: TrainedRuns) -> None:
    brief = ("sft.policy.steps=25", "eval.trials.control=false")
    run = trained_run(*SHORT, *brief, name="rap/nano_self")
    first, second = rows(run)
    assert 0 == first.remembered < second.remembered
    shown = [remembered(played) for played in episodes(run, "rlft-local-trial2")]
    others = trained_run(*SHORT, *brief, "eval.memory.embedder=hashing", name="rap/nano_self")
    assert all(shown)
    assert shown != [remembered(played) for played in episodes(others, "rlft-local-trial2")]


@pytest.mark.slow
def test_a_memory_may_begin_with_the_teachers_episodes(trained_run: TrainedRuns) -> None:
    brief = ("eval.trials.count=2", "eval.trials.control=false", "eval.groups=[4-, none]")
    run = trained_run(*BRIEF, *brief, name="rap/nano_trials_taught")
    first, second = rows(run)
    of_group = [row for row in read_trials(run / "trials.jsonl") if row.group]
    assert [(row.trial, row.group) for row in of_group] == [(1, "4-"), (2, "4-")]
    for row in of_group:
        part = [each for each in episodes(run, f"rlft-local-trial{row.trial}") if each.task.id.startswith("4-")]
        assert row.metrics.episodes == len(part) > 0
        assert row.metrics.success == sum(each.success for each in part) / len(part)
    assert 0 < first.remembered <= second.remembered
    assert all(remembered(played) for played in episodes(run, "rlft-local-trial1"))
    [played, *_] = episodes(run, "rlft-local-trial1")
    assert list(played.turns[0].said) == ["reflector", "memory"]  # the memory's key is taken from the reflection


@pytest.mark.slow
def test_the_first_trial_may_show_two_examples(trained_run: TrainedRuns) -> None:
    brief = ("eval.trials.begin_with=examples", "eval.trials.control=false", "eval.memory.max_chars=2000")
    run = trained_run(*SHORT, *brief, "sft.policy.steps=25", "model.max_length=1024", name="rap/nano_trials")
    _, taught = read_trajectories(run / "data" / "teacher.jsonl")
    lengths = {each.turns[0].observation.text: len(each.turns) for each in taught if each.success}
    shown = {remembered(played) for played in episodes(run, "rlft-local-trial1")}
    words = {line for text in shown for line in text.splitlines()}
    assert len(words) == 2
    for example in words:
        (steps,) = [count for start, count in lengths.items() if example.startswith(f"{SUCCEEDED} {start} >")]
        assert example.count(">") == steps
    first, second = rows(run)
    solved = sum(played.success for played in episodes(run, "rlft-local-trial1"))
    assert (first.remembered, second.remembered) == (len({each.task.id for each in taught if each.success}), solved)


@pytest.mark.slow
def test_r6_a_chat_model_is_shown_what_succeeded_in_the_trial_before(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    def first_action(chat: Chat) -> str:
        return chat[1]["content"].splitlines()[-2].partition(".")[0]

    endpoint.reply = first_action
    at = f"players.policy.endpoint.base_url={endpoint.url}"
    brief = (at, "rlft=null", "eval.episodes=2", "eval.trials.count=2")
    recipe = small_recipe(*brief, name="rap/nano_trials_chat")
    play_stages(recipe, tmp_path / "run")
    first, second = rows(tmp_path / "run")
    assert 0 < first.metrics.success < 1
    asked = [request.chat[1]["content"] for request in endpoint.requests]
    assert not any(remembered(played) for played in episodes(tmp_path / "run", "remote-none-trial1"))
    assert "Memory: Done before: " in asked[-1]
    shown = {
        played.success
        for played in episodes(tmp_path / "run", "remote-none-trial1")
        if any(f"Done before: {played.turns[0].observation.text} > {played.actions[0]}" in text for text in asked)
    }
    assert shown == {True}
    assert second.remembered == first.metrics.success * first.metrics.episodes


@pytest.mark.slow
def test_a_chat_policy_reads_the_other_players_words(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    def words(chat: Chat) -> str:
        if chat[0]["content"].startswith("You plan"):
            return "To solve the task, go on."
        if chat[0]["content"].startswith("A player thinks aloud"):
            return "action: add"
        return chat[1]["content"].splitlines()[-2].partition(".")[0] if "menu" in chat[0]["content"] else "I add one."

    endpoint.reply = words
    at = [f"players.{role}.endpoint.base_url={endpoint.url}" for role in ("policy", "planner", "reflector")]
    players = ("players.planner.player=remote", "players.reflector.player=remote", "eval.memory.key=planner")
    brief = ("rlft=null", "eval.episodes=2", "eval.trials.count=2", "eval.trials.begin_with=teacher")
    play_stages(small_recipe(*at, *players, *brief, name="rap/nano_trials_chat"), tmp_path / "run")
    for mode in ("sampled", "trial1", "trial2"):
        for played in episodes(tmp_path / "run", f"remote-remote-{mode}"):
            assert [*played.turns[0].said] == ["planner", "reflector", "memory"]
            assert played.turns[0].said["reflector"].text == "I add one."
    assert any(request.chat[1]["content"].endswith("Thought: I add one.") for request in endpoint.requests)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("eval.memory=null", "eval.trials.control=false"), "no memory says how"),
        (("players.memory={}",), "remove one of the two"),
        (("eval.policies=[sft]",), "eval.policies does not"),
    ],
)
def test_trials_that_could_remember_nothing_are_refused(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        small_recipe(*overrides, name="rap/nano_trials")
