"""The AutoExplore tables, from run folders whose episodes are known; the packages, from a dataset of small folders."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from arms import Arm
from auto_explore import ARMS, REFLECT, company, packages
from records import chose, turn_of

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import Observation, Task, Trajectory
from reflectrl.data_gen import generate
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.players import RunPlayers
from reflectrl.prompts import PromptFormat
from reflectrl.rollout.record import Header, write_trajectories
from reflectrl.rollout.results import summarise, write_results

ROWS = (
    ("random", "none"),
    ("sft", "local"),
    ("rlft", "local"),
    ("rlft", "blank"),
    ("rlft", "shuffled"),
    ("rlft", "expert"),
    ("expert", "none"),
)


def episode(depth: int, actions: Sequence[str], *, success: bool) -> Trajectory:
    turns = tuple(turn_of(Observation("", (action,)), (action,), None, chose(0, action), 0.0) for action in actions)
    return Trajectory(Task(f"d{depth}/shop/a#1"), 0, turns, success, not success, success)


def write_run(run: Path, dataset: Path, played: Sequence[Trajectory]) -> None:
    """An evaluated run of 1,234 environment steps and 2.5 minutes, in which everybody played the same."""
    run.mkdir(parents=True)
    header, modes = Header("auto_explore", {}, PromptFormat()), ("sampled", "greedy")
    for policy, reflections in ROWS:
        write_trajectories(run / "trajectories" / f"eval-{policy}-{reflections}-sampled.jsonl", header, played)
    write_results(run / "eval.jsonl", [summarise(*row, mode, "test", played) for row in ROWS for mode in modes])
    ledger = {stage: {"done": True, "inputs": {}, "cpu_seconds": took} for stage, took in (("sft", 60), ("rlft", 90))}
    (run / "stages.json").write_text(json.dumps(ledger))
    (run / "metrics.jsonl").write_text('{"env_steps": 1}\n{"env_steps": 1234}\n')
    (run / "recipe.yaml").write_text(dump_recipe(load_recipe("auto_explore/nano")))
    shutil.copytree(dataset, run / "dataset")


def cells(text: str) -> dict[str, list[str]]:
    """The lines of a table but its heads, by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines if "success %" not in rest}


def test_the_company_s_tables_hold_every_arm_and_the_walkers_on_the_same_tasks(dataset, tmp_path):
    tested = (episode(0, ["id f4.md"], success=True), episode(2, ["cd people"], success=False))
    for arm in ARMS:
        write_run(replace(arm, runs=tmp_path).folder(0), dataset, tested)
    text, more = company([0], tmp_path)
    table = cells(text)
    assert len(table) == 14
    # of the two test questions, the walker answers the shelf's in 5 steps and the shop's in 11
    assert table["breadth first, as many steps"] == ["100", "100", "100", "100", "-", "8.0", "4.0", "-", "-"]
    assert table["names that stand in the question"][:2] == ["0", "0"]  # the questions name no file
    assert table["**Reflect-RL**"][-2:] == ["2.5", "1,234"]
    assert more.count("### Depth") == 2


@pytest.fixture(scope="module")
def untrained(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Arm:
    """An arm whose run of seed 0 has untrained players, so only the machinery is shown."""
    arm = replace(REFLECT, runs=tmp_path_factory.mktemp("runs"))
    run = RunFolder(arm.folder(0))
    recipe = load_recipe("auto_explore/nano", ["data.samples=20"])
    shutil.copytree(dataset, run / "dataset")
    (run / "recipe.yaml").write_text(dump_recipe(recipe))
    generate(recipe, run.path)
    base = RunPlayers(recipe, run).base("policy")
    for player in ("policy", "reflector"):
        shutil.copytree(base.name, run / player)
    return arm


@pytest.mark.slow
def test_the_packages_have_walkers_rankings_and_agents_on_the_same_tasks(dataset, untrained):
    text = packages([0], untrained.runs, dataset)
    assert "4 questions of the offline writer (shelf 1, shop 3)" in text
    overall, deepest = cells(text.partition("### ")[0]), cells(text.partition("### Depth 2")[2])
    assert list(overall) == [
        "random",
        "breadth first, as many steps",
        "BM25, top 1",
        "BM25, top 5",
        "**Reflect-RL**, trained on the company",
        "expert",
    ]
    # the shelf has five files, as has the shop
    assert overall["BM25, top 5"] == ["100", "100", "100", "100", "100", "-", "5.0"]
    assert overall["expert"][-2:] == ["2.0", "0.0"]
    assert deepest["breadth first, as many steps"] == ["100", "100", "11.0", "4.0"]
