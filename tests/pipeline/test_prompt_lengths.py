"""Prompts that are too long for the model are found before a stage starts, and cut during play; no run fails."""

from __future__ import annotations

import json
import re

import pytest
from trained_runs import play_stages, small_recipe
from wordy_line import WordyLine

from reflectrl.core import InvalidInput, register_env
from reflectrl.rollout.record import read_trajectories

register_env("wordy_line", WordyLine)
SHORT = (
    *("data.samples=40", "data.noise=0.0", "rlft.lessons.0.iterations=2", "eval.policies=[rlft]", "eval.episodes=6"),
    *("players.reflector.max_new_tokens=8", "model.max_length=72", "sft.drop_long_rows=true"),
)


def recipe(tmp_path, *overrides):
    text = tmp_path / "wordy.yaml"
    text.write_text("extends: number_line/nano\nname: wordy\nenv:\n  name: wordy_line\n")
    return small_recipe(*SHORT, *overrides, name=str(text))


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "reflectrl.pipeline.prompt_lengths"]


@pytest.mark.slow
def test_a_run_with_too_long_states_is_warned_and_ends(tmp_path, caplog):
    play_stages(recipe(tmp_path, "env.options={path: false}"), tmp_path / "short", "gen-data", "sft")
    assert warnings(caplog) == []
    play_stages(recipe(tmp_path), tmp_path / "run")
    assert {said.split("'")[0] for said in warnings(caplog)} == {"the reflector", "the policy"}
    assert all("raise model.max_length, lower players.reflector.max_new_tokens, or have" in w for w in warnings(caplog))
    _, played = read_trajectories(tmp_path / "run" / "trajectories" / "eval-rlft-local-sampled.jsonl")
    assert max(len(turn.observation.text) for episode in played for turn in episode.turns) > 72  # digits are tokens
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(abs(row["kl"]) < 1e-5 for row in metrics)  # prompts are cut alike at play and in the update


@pytest.mark.slow
def test_past_states_that_do_not_fit_are_named(tmp_path, caplog):
    past = "prompt.history={steps: 9, show: transitions}"
    play_stages(recipe(tmp_path, "env.options={path: false}", past), tmp_path / "run", "gen-data", "sft")
    assert {said.split("'")[0] for said in warnings(caplog)} == {"the reflector", "the policy"}
    assert all(
        "of the 9 past states that prompt.history shows, the oldest will be left out" in w for w in warnings(caplog)
    )


@pytest.mark.slow
def test_a_too_long_memory_is_named(tmp_path, caplog):
    taught = ("rlft=null", "eval.policies=[sft]", "eval.controls=[]", "eval.memory={max_chars: 4000}")
    play_stages(small_recipe(*SHORT, *taught), tmp_path / "run")
    assert {said.split("'")[0] for said in warnings(caplog)} == {"the reflector", "the policy"}
    assert all(
        said.endswith("or have the environment or the memory (its max_chars) show less.") for said in warnings(caplog)
    )


@pytest.mark.slow
def test_prompts_that_cannot_be_cut_are_refused(tmp_path):
    later = {"name": "later", "iterations": 1, "env": {"asides": 60}}
    lessons = json.dumps([{"name": "main", "iterations": 1}, later])
    wordy = recipe(tmp_path, f"rlft.lessons={lessons}", "env.workers=1")
    play_stages(wordy, tmp_path / "run", "gen-data")
    with pytest.raises(InvalidInput, match=r"\d+ tokens .*; raise model\.max_length, lower players\.reflector\."):
        play_stages(wordy, tmp_path / "run", "sft")
    assert not (tmp_path / "run" / "reflector").exists()


@pytest.mark.slow
def test_players_that_may_not_write_what_they_learn_are_named(tmp_path, caplog):
    short = ("data.samples=40", "sft.reflector.steps=1", "sft.policy.steps=1")
    play_stages(small_recipe(*short), tmp_path / "whole", "gen-data", "sft")
    assert warnings(caplog) == []
    play_stages(small_recipe(*short, "players.reflector.max_new_tokens=1"), tmp_path / "cut", "gen-data", "sft")
    [said] = warnings(caplog)
    assert re.match(r"\d+% of the texts that the reflector .*=1 tokens .*; to play whole ones, set it to 2", said)
    caplog.clear()
    thinks = ("prompt.action_mode=thought_choice", "players.reflector.player=none", "players.policy.max_new_tokens=1")
    play_stages(small_recipe(*short, *thinks), tmp_path / "thinks", "gen-data", "sft")
    assert ["players.policy.max_new_tokens=1 tokens" in said for said in warnings(caplog)] == [True]
