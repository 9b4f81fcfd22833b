"""Short runs at two commits confirm tables of learning."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path

import pytest
from arms import ENVIRONMENTS, Arm
from confirm import arms_of, confirm, differences, overrides, precisions
from stale import COMMIT, TABLES
from trained_runs import TrainedRuns

from reflectrl.config import load_recipe
from reflectrl.core.jsonl import encode
from reflectrl.pipeline.compute import ChosenPrecision
from reflectrl.pipeline.console import Reporter


def test_weights_and_results_are_compared_and_new_columns_are_not(trained_run: TrainedRuns, tmp_path: Path) -> None:
    run = trained_run()
    other = shutil.copytree(run, tmp_path / "other")
    assert differences(run, other) == []
    rows = (other / "eval.jsonl").read_text()
    (other / "eval.jsonl").write_text(rows.replace('"success":', '"new": 1, "success":'))
    assert differences(run, other) == []
    (other / "eval.jsonl").write_text(rows.replace('"episodes": ', '"episodes": 1'))
    weights = other / "policy" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert differences(run, other) == ["policy/model.safetensors", "eval.jsonl"]
    (other / "eval.jsonl").write_text("".join(rows.splitlines(keepends=True)[:-1]))
    assert "eval.jsonl" in differences(run, other)


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_arm_of_a_table_has_a_short_run(env: str) -> None:
    tables = arms_of(env)
    assert {*tables} <= {*TABLES}
    for arm in chain.from_iterable(arms for _, arms in tables.values()):
        recipe = load_recipe(arm.recipe, overrides(arm))
        assert recipe.rlft is not None
        assert sum(stage.iterations for stage in recipe.rlft.stages) <= 6


def test_the_second_run_has_the_precision_that_the_first_one_chose_by_a_trial(tmp_path: Path) -> None:
    assert precisions(tmp_path) == []
    given, tried = ChosenPrecision("float32", None), ChosenPrecision("bfloat16", 1.3)
    for chosen, changes in (
        ({"policy": given}, []),
        ({"policy": tried}, ["model.compute=bfloat16"]),
        ({"policy": given, "reflector": tried}, ["reflector_model.compute=bfloat16"]),
    ):
        (tmp_path / "compute.json").write_text(json.dumps(encode(chosen)))
        assert precisions(tmp_path) == changes


def test_arms_that_have_no_run_at_the_earlier_commit_confirm_nothing(tmp_path: Path) -> None:
    assert not confirm("HEAD", [Arm("new", "New", "number_line/of_tomorrow")], tmp_path, Reporter())


def test_a_confirmed_table_is_judged_by_the_commit_that_confirms_it() -> None:
    text = "at commit 1a2b3c4 (same bytes at 5d6e7f8), commit 9a0b1c2 by"
    assert COMMIT.findall(text) == [("1a2b3c4", "5d6e7f8"), ("9a0b1c2", "")]
