"""Recipes with a planner: its plan in SFT rows and prompts, its keys for the memory, and its plans in the memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint
from trained_runs import TrainedRuns, play_stages, small_recipe

from reflectrl.core import InvalidInput
from reflectrl.data_gen.rows import read_rows
from reflectrl.report.runs import read_runs
from reflectrl.rollout.record import read_trajectories
from reflectrl.rollout.turn import policy_views

BRIEF = ("eval.policies=[rlft]", "eval.greedy=false", "eval.trials.control=false", "rlft.lessons.0.iterations=1")


@pytest.mark.slow
def test_a_rules_plan_is_in_every_row_and_prompt(trained_run: TrainedRuns) -> None:
    run = trained_run(*BRIEF, name="rap/nano_planner")
    for name in ("policy", "reflector", "policy-no-reflection"):
        assert all(row.prompt.said.startswith("Plan: ") for row in read_rows(run / "sft" / f"{name}.jsonl"))
    for name in ("rlft-00000", "eval-rlft-local-sampled", "eval-rlft-local-trial2"):
        header, played = read_trajectories(run / "trajectories" / f"{name}.jsonl")
        for episode in played:
            assert list(episode.turns[0].said) == ["planner", "reflector", "memory"]
            assert all("planner" not in turn.said for turn in episode.turns[1:])
            plan = f"Plan: {episode.turns[0].said['planner'].text}\n"
            assert all(plan in view.prompt.text for view in policy_views(episode, header.prompt))


@pytest.mark.slow
def test_a_planner_is_not_asked_for_rows_that_no_stage_reads(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply = lambda chat: "To solve the task, walk."  # noqa: ARG005
    at = (f"players.planner.endpoint.base_url={endpoint.url}", "sft.enabled=false", "rlft=null", "eval.controls=[]")
    recipe = small_recipe(*BRIEF, *at, "eval.policies=[random]", "eval.trials=null", name="rap/nano_planner_endpoint")
    play_stages(recipe, tmp_path / "run", "gen-data")
    assert endpoint.requests == []


@pytest.mark.slow
def test_a_chat_model_plans_and_says_what_to_look_up(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    def answer(chat: Chat) -> str:
        if "choose what to look up" in chat[0]["content"]:
            return "action: add one"
        return "To solve the task, walk. And rest."

    endpoint.reply = answer
    at = f"players.planner.endpoint.base_url={endpoint.url}"
    recipe = small_recipe(*BRIEF, at, name="rap/nano_planner_endpoint")
    assert re.search(r"^calls  +(\d+) ", play_stages(recipe, tmp_path / "run", "gen-data"), re.MULTILINE)
    play_stages(recipe, tmp_path / "run")
    asked = [request.chat for request in endpoint.requests]
    plans = [chat[1]["content"] for chat in asked if "You plan" in chat[0]["content"]]
    assert plans
    assert len(plans) < len(asked)
    assert any("Plan: To solve the task, walk.\n" in text for text in plans)  # of the first trial, in the second
    header, played = read_trajectories(tmp_path / "run" / "trajectories" / "eval-rlft-local-trial2.jsonl")
    assert any("Plan: To solve the task, walk. " in each.turns[0].said["memory"].text for each in played)
    [run] = read_runs([tmp_path / "run"])
    assert [(calls.role, calls.model) for calls in run.calls] == [("planner", "local")]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("players.planner.player=expert",), "is not a model"),
        (("players.planner=null",), "is not a model"),
        (("players.reflector.player=none", "eval.controls=[]"), "has neither"),
        (("players.planner.model.name=builtin/nano",), "model is not trained"),
    ],
)
def test_keys_that_nobody_could_say_are_refused(overrides: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        small_recipe(*overrides, name="rap/nano_planner_endpoint")
