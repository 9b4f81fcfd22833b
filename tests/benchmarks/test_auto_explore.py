"""The AutoExplore tables, from run folders whose episodes are known; the packages, from a dataset of small folders."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import auto_explore
import pytest
from arm_runs import cells, write_run
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
from reflectrl.rollout.results import summarise

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


def test_the_company_s_tables_hold_every_arm_and_the_walkers_on_the_same_tasks(dataset, tmp_path):
    tested = (episode(0, ["id f4.md"], success=True), episode(2, ["cd people"], success=False))
    header, modes = Header("auto_explore", {}, PromptFormat()), ("sampled", "greedy")
    rows = [summarise(*row, mode, "test", tested) for row in ROWS for mode in modes]
    for arm in ARMS:
        run = write_run(replace(arm, runs=tmp_path).folder(0), "auto_explore/nano", rows)
        shutil.copytree(dataset, run / "dataset")
        for policy, reflections in ROWS:
            write_trajectories(run / "trajectories" / f"eval-{policy}-{reflections}-sampled.jsonl", header, tested)
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


def test_names_answer_test_questions_but_none_by_content(tmp_path):
    for place in ("oslo", "riga", "rome"):
        file = tmp_path / "shop" / "leave" / f"{place}.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"# Leave in {place}: sick notes\n\nSick notes go to extension {len(place)}{place[1:].encode().hex()}."
        )
    text = auto_explore.without_learning([0, 1], tmp_path / "runs", [f"dataset.repositories=[{tmp_path / 'shop'}]"])
    first, second = (cells(part) for part in text.split("#### ")[1:])
    assert "#### Questions by content (1, 1)" in text
    assert first["names that stand in the question"][:2] == ["100", "100"]
    assert second["names that stand in the question"][:2] == ["0", "0"]
    for rows in (first, second):
        assert rows["breadth first, as many steps"][:2] == ["100", "100"]
        assert rows["to the first of BM25, which has read all files"][-2:] == ["2.0", "3.0"]


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
