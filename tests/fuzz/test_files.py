"""Whatever a file of a run or a dataset holds, it is read or refused with a sentence; what was written comes back."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alfworld_games import write_game
from damage import damaged_json, damaged_lines
from hypothesis import given, settings
from hypothesis import strategies as st
from records import chose, turn_of

from reflectrl.core import (
    Choice,
    Decision,
    InvalidInput,
    Observation,
    Task,
    Tokens,
    Trajectory,
    Turn,
    Utterance,
    WorkFailed,
)
from reflectrl.core.jsonl import decode, read_jsonl, write_jsonl
from reflectrl.data_gen.rows import Row, read_rows, write_rows
from reflectrl.data_gen.samples import Sample, read_samples, write_samples
from reflectrl.envs.alfworld.catalogue import published_games
from reflectrl.envs.alfworld.games import Game, read_game
from reflectrl.envs.auto_explore.dataset import Dataset, Question, read_dataset, write_dataset
from reflectrl.prompts import Menu, Prompt, PromptFormat
from reflectrl.report.page import report_page
from reflectrl.report.runs import read_runs
from reflectrl.rollout.record import Header, read_trajectories, write_trajectories
from reflectrl.rollout.results import read_results, summarise, write_results

RANDOMS = st.randoms(use_true_random=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | NUMBER | TEXT, lambda part: st.lists(part, max_size=3))
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
TASKS = st.builds(Task, TEXT, st.dictionaries(TEXT, JSON, max_size=3))
OBSERVATIONS = st.builds(Observation, TEXT, TEXTS, TEXT)
NUMBERS = st.lists(NUMBER, max_size=3).map(tuple)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
OUTPUTS = st.builds(Choice, INTEGERS, NUMBERS) | st.builds(
    Tokens, st.lists(INTEGERS, max_size=3).map(tuple), st.lists(st.tuples(INTEGERS, INTEGERS)).map(tuple), NUMBERS
)
DECISIONS = st.builds(Decision, TEXT, NUMBER, NUMBER, OUTPUTS, NUMBER)
SAID = st.dictionaries(
    TEXT, st.builds(Utterance, TEXT, INTEGERS, st.lists(st.none() | NUMBER, max_size=3).map(tuple)), max_size=2
)
REWARDS = st.dictionaries(TEXT, NUMBER, max_size=2)
TURNS = st.builds(Turn, OBSERVATIONS, TEXTS, SAID, DECISIONS, REWARDS, st.booleans())
TRAJECTORIES = st.builds(
    Trajectory,
    TASKS,
    st.integers(),
    st.lists(TURNS, max_size=2).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
SAMPLES = st.builds(Sample, TASKS, st.integers(), TEXTS, OBSERVATIONS, TEXTS, TEXT, TEXT, st.booleans())
PROMPTS = st.builds(Prompt, TEXT, TEXTS, TEXT, st.none(), TEXT, TEXT)
ROWS = st.builds(Row, st.just("reflector"), PROMPTS, TEXT, TEXT, INTEGERS, st.booleans())
HEADERS = st.builds(
    Header,
    TEXT,
    st.dictionaries(TEXT, JSON, max_size=3),
    st.builds(PromptFormat, instructions=TEXT, history=st.integers(0, 99)),
)

TURN = turn_of(
    Observation("Cell 3.", ("go on", "turn"), "Be quick."),
    ("turn", "go on"),
    "Good.",
    chose(1, "go on", -0.5, 0.7, (0.4, 0.6), 0.1),
    -0.05,
)
EPISODE = Trajectory(Task("a-to-b", {"start": [1, {"x": None}]}), 3, (TURN, TURN), True, False, True)
HEADER = Header("corridor", {"size": 4}, PromptFormat())
POINT = {"iteration": 0, "stage": "all", "success": 0.5, "episode_return": 1.0, "entropy": 0.3, "env_steps": 64}
GAME = Game(
    name="pick_and_place_simple-Mug-None-Desk-301/seed-0",
    family="pick_and_place_simple",
    problem="(define (problem p) (:domain alfred) (:objects a) (:init (b)) (:goal (c)))",
    goal="put a mug on a desk",
    targets={"object_target": "Mug", "parent_target": "Desk", "toggle_target": ""},
    domain="(define (domain alfred))",
    grammar='action PutObject { template :: "move {o} to {r}"; } "Your task is to: put a mug on a desk."',
)


def write_run(folder: Path) -> None:
    """A run folder with everything that a report shows."""
    (folder / "trajectories").mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: nano\n", encoding="utf-8")
    write_results(
        folder / "eval.jsonl", [summarise(policy, "local", "sampled", "test", [EPISODE]) for policy in ("sft", "rlft")]
    )
    write_jsonl(folder / "metrics.jsonl", [{**POINT, "iteration": number} for number in range(9)])
    write_jsonl(
        folder / "throughput.jsonl",
        [{"iteration": number, "seconds": 1.5, "reflection_hit_rate": 0.5} for number in range(9)],
    )
    for name in ("eval-rlft-local-sampled", "rlft-00000", "rlft-00008"):
        write_trajectories(folder / "trajectories" / f"{name}.jsonl", HEADER, [EPISODE, EPISODE])


def write_questions(folder: Path) -> None:
    """A dataset of five files in one repository."""
    place = folder.with_name("shop")
    (place / "people").mkdir(parents=True)
    files = ["a.md", "b.md", "people/c.md"]
    for file in files:
        (place / file).write_text("Text.", encoding="utf-8")
    asked = (Question("shop", f"What is {file}?", "Text.", file, 1) for file in files)
    write_dataset(
        folder, Dataset({split: (next(asked),) for split in ("train", "validation", "test")}, {"shop": place})
    )


READERS: dict[str, tuple[Callable[[Path], object], Callable[[Path], object]]] = {
    "rows": (
        lambda folder: write_rows(
            folder / "rows.jsonl",
            [
                Row("policy", Prompt("", (), "Menu", Menu(("0", "1"), ("left", "right"))), "0", "t", 1, False),
                Row("reflector", Prompt("", ("Past: none\n",), "S"), "G", "t", 0, True),
            ],
        ),
        lambda folder: read_rows(folder / "rows.jsonl"),
    ),
    "samples": (
        lambda folder: write_samples(
            folder / "samples.jsonl",
            HEADER,
            [Sample(EPISODE.task, 0, ("a",), TURN.observation, ("b",), "Good.", "b", True)] * 3,
        ),
        lambda folder: read_samples(folder / "samples.jsonl"),
    ),
    "trajectories": (
        lambda folder: write_trajectories(folder / "rlft.jsonl", HEADER, [EPISODE] * 3),
        lambda folder: read_trajectories(folder / "rlft.jsonl"),
    ),
    "results": (
        lambda folder: write_results(folder / "eval.jsonl", [summarise("sft", "none", "greedy", "test", [EPISODE])]),
        lambda folder: read_results(folder / "eval.jsonl"),
    ),
    "run": (
        lambda folder: write_run(folder / "nano"),
        lambda folder: report_page(read_runs([folder / "nano"])).encode(),
    ),
    "dataset": (
        lambda folder: write_questions(folder / "dataset"),
        lambda folder: read_dataset(folder / "dataset"),
    ),
    "game": (
        lambda folder: write_game(folder / "json_2.1.1" / "train" / "pick" / "trial", GAME),
        lambda folder: [read_game(game.path) for game in published_games("train", folder)],
    ),
}


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".jsonl", ".json", ".tw-pddl"))


@pytest.fixture(scope="module", params=READERS)
def stored(request, tmp_path_factory) -> Iterator[tuple[Path, Callable[[Path], object]]]:
    """A folder of good files, and what reads it."""
    write, read = READERS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    write(folder)
    read(folder)
    return folder, read


@contextlib.contextmanager
def damaged(folder: Path) -> Iterator[Path]:
    """A copy at a path of its own: some readers remember what they have read."""
    damaged.count = getattr(damaged, "count", 0) + 1  # type: ignore[attr-defined]
    copy = folder.with_name(f"{folder.name}-{damaged.count}")  # type: ignore[attr-defined]
    shutil.copytree(folder, copy)
    try:
        yield copy
    finally:
        shutil.rmtree(copy)


@settings(max_examples=60)
@given(rng=RANDOMS)
def test_a_damaged_file_is_read_or_refused(stored, rng: random.Random):
    folder, read = stored
    with damaged(folder) as copy:
        path = rng.choice(files_in(copy))
        content = path.read_bytes()
        if path.suffix == ".jsonl":
            path.write_bytes(damaged_lines(rng, content))
        else:
            path.write_bytes(damaged_json(rng, content.decode()).encode("utf-8", "surrogatepass"))
        with contextlib.suppress(InvalidInput):
            read(copy)


@settings(max_examples=15)
@given(content=st.binary(max_size=200))
def test_a_file_of_anything_is_read_or_refused(stored, content: bytes):
    folder, read = stored
    with damaged(folder) as copy:
        for path in files_in(copy):
            path.write_bytes(content)
        with contextlib.suppress(InvalidInput):
            read(copy)


@given(header=HEADERS, episodes=st.lists(TRAJECTORIES, max_size=3), samples=st.lists(SAMPLES, max_size=3))
def test_trajectories_and_samples_come_back_equal(tmp_path_factory, header, episodes, samples):
    path = tmp_path_factory.getbasetemp() / "records.jsonl"
    write_trajectories(path, header, episodes)
    assert read_trajectories(path) == (header, episodes)
    write_samples(path, header, samples)
    assert read_samples(path) == (header, samples)


@given(rows=st.lists(ROWS, min_size=1, max_size=3))
def test_rows_come_back_equal(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "rows.jsonl"
    write_rows(path, rows)
    assert read_rows(path) == rows


ANYTHING = st.recursive(
    st.none() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=3),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(st.characters()), part, max_size=3),
)


@given(options=st.dictionaries(TEXT, ANYTHING, max_size=3))
def test_what_no_file_can_hold_is_refused_before_it_is_written(tmp_path_factory, options: dict[str, Any]):
    path = tmp_path_factory.getbasetemp() / "task.jsonl"
    task = Task("a", options)
    write_jsonl(path, [Task("b")])
    try:
        write_jsonl(path, [task])
    except WorkFailed:
        task = Task("b")
    (where, value), *others = read_jsonl(path)
    assert not others
    assert decode(Task, value, where) == task
