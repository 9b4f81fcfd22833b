"""Files of runs and datasets with any content are read or refused in a sentence; records are read as written."""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from alfworld_games import write_game
from damage import damaged_json, damaged_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from run_folders import episode, iteration, make_run

from reflectrl.config import Recipe
from reflectrl.core import (
    InvalidInput,
)
from reflectrl.core.types import SPLITS
from reflectrl.data_gen import generate
from reflectrl.data_gen.rows import read_rows, read_samples
from reflectrl.envs.alfworld.catalogue import published_games
from reflectrl.envs.alfworld.games import Game, read_game
from reflectrl.envs.auto_explore.dataset import Dataset, Question, read_dataset, write_dataset
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.rollout.record import read_trajectories

RANDOMS = st.randoms(use_true_random=False)

GAME = Game(
    name="pick_and_place_simple-Mug-None-Desk-301/seed-0",
    family="pick_and_place_simple",
    problem="(define (problem p) (:domain alfred) (:objects a) (:init (b)) (:goal (c)))",
    goal="put a mug on a desk",
    targets={"object_target": "Mug", "parent_target": "Desk", "toggle_target": ""},
    domain="(define (domain alfred))",
    grammar='action PutObject { template :: "move {o} to {r}"; } "Your task is to: put a mug on a desk."',
)


def write_data(folder: Path) -> None:
    """Write trajectories, samples and rows."""
    data = {"samples": 6, "negatives": 0.5}
    generate(Recipe.model_validate({"name": "test", "env": {"name": "number_line"}, "data": data}), folder)


def read_data(folder: Path) -> None:
    read_trajectories(folder / "data" / "teacher.jsonl")
    read_samples(folder / "data" / "negatives.jsonl")
    for path in sorted((folder / "sft").iterdir()):
        read_rows(path)


def write_run(folder: Path) -> None:
    """Write a run folder with everything that a report shows."""
    played, metrics = [episode("t-0"), episode("t-1", success=False)], [iteration(number) for number in range(9)]
    make_run(folder / "nano", {"sft": played, "rlft": played}, metrics, [played, played])


def write_questions(folder: Path) -> None:
    """Write a dataset of three files in one repository."""
    place = folder.with_name("shop")
    (place / "people").mkdir(parents=True)
    files = ["a.md", "b.md", "people/c.md"]
    for file in files:
        (place / file).write_text("Text.", encoding="utf-8")
    asked = (Question("shop", f"What is {file}?", "Text.", file, 1) for file in files)
    write_dataset(folder, Dataset({split: (next(asked),) for split in SPLITS}, {"shop": place}))


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "data": (write_data, read_data),
    "run": (write_run, lambda folder: report_page(read_runs([folder / "nano"]))),
    "dataset": (write_questions, read_dataset),
    "game": (
        lambda folder: write_game(folder / "json_2.1.1" / "train" / "pick" / "trial", GAME),
        lambda folder: [read_game(game.path) for game in published_games("train", folder)],
    ),
}


@pytest.fixture(scope="module", params=READERS)
def stored(request, tmp_path_factory) -> tuple[Path, Callable[[Path], object]]:
    """A folder of good files, and its reader."""
    write, read = READERS[request.param]
    folder = tmp_path_factory.mktemp(request.param) / "whole"
    write(folder)
    read(folder)
    return folder, read


COPIES = itertools.count()


def read_with(stored, choose: Callable[[list[Path]], Path], damage: Callable[[Path], bytes]) -> None:
    """Read a copy with one damaged file, at a new path, because some readers cache by path."""
    folder, read = stored
    copy = shutil.copytree(folder, folder.with_name(str(next(COPIES))))
    path = choose(sorted(path for path in copy.rglob("*") if path.suffix in (".jsonl", ".json", ".tw-pddl")))
    path.write_bytes(damage(path))
    with contextlib.suppress(InvalidInput):
        read(copy)
    shutil.rmtree(copy)


@pytest.mark.slow
@settings(max_examples=80)
@given(rng=RANDOMS)
def test_a_damaged_file_is_read_or_refused(stored, rng: random.Random):
    def damage(path: Path) -> bytes:
        if path.suffix == ".jsonl":
            return damaged_lines(rng, path.read_bytes())
        return damaged_json(rng, path.read_text()).encode("utf-8", "surrogatepass")

    read_with(stored, rng.choice, damage)
