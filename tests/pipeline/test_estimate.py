"""The estimate of a recipe's time, from short runs of its stages."""

from __future__ import annotations

import json

import pytest
from command_line import reflectrl, refused
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.pipeline.folder import RunFolder

TINY = (
    *("model.builtin={layers: 1, width: 32, heads: 2, vocabulary: 384}", "rlft.episodes=8", "data.samples=400"),
    *(
        "sft.reflector.steps=40",
        "sft.policy.steps=60",
        "rlft.lessons=[{name: short, iterations: 3}, {name: long, iterations: 4}]",
    ),
    *("rlft.validation=null", "rlft.keep=last", "eval.episodes=40", "eval.policies=[random, rlft]"),
)


@pytest.mark.slow
def test_the_estimate_of_a_recipe_is_near_the_truth(tmp_path):
    recipe = load_recipe("number_line/nano", TINY)
    printed = reflectrl("estimate", "--recipe", "number_line/nano", *TINY, "--format", "json")
    found = json.loads(printed.out)
    assert [(each["stage"], each["count"]) for each in found["stages"]] == [
        *[("gen-data", 400), ("sft reflector", 40), ("sft policy", 60)],
        *[("rlft short", 3), ("rlft long", 4), ("eval", 40)],
    ]
    assert all(each["seconds"] > 0 for each in found["stages"])
    assert 0 < found["memory"]["weights"] == found["memory"]["gradients"] == found["memory"]["optimizer"] // 2
    estimated = sum(each["count"] * each["seconds"] for each in found["stages"])
    play_stages(recipe, tmp_path / "run")
    took = RunFolder(tmp_path / "run").seconds()
    assert took / 4 < estimated < 4 * took, "within what a busy machine does to either"


@pytest.mark.slow
def test_the_command_prints_a_table_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = (
        "estimate",
        "--recipe",
        "number_line/nano",
        *TINY,
        "rlft=null",
        "eval.policies=[random, sft]",
        "eval.controls=[]",
    )
    shown = reflectrl(*given)
    assert shown.code == 0, shown.err
    assert "400 samples" in shown.out
    assert "at most" in shown.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        ("dangerous_taxi/openai_teacher", "data.endpoint"),
        ("dangerous_taxi/remote_reflector", "players.reflector.endpoint"),
        ("vtifa/nano_endpoint", "players.rater.endpoint"),
    ],
)
def test_no_chat_model_that_may_cost_money_is_asked(recipe, key):
    assert f"({key}" in refused("estimate", "--recipe", recipe)
