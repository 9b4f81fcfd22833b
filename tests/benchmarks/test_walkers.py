"""The walkers, on small real folders, through the real environment."""

from __future__ import annotations

import pytest
from walkers import BM25, Search, breadth_first, by_names, by_rank

from reflectrl.core import Task
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.dataset import read_dataset, readable_files
from reflectrl.envs.auto_explore.libraries import folder_library


@pytest.fixture
def walk(dataset):
    """Plays a question breadth first; gives the search and its commands."""
    repositories = read_dataset(dataset).repositories
    texts = {name: dict(readable_files(folder).readable) for name, folder in repositories.items()}

    def play(file: str, question: str | None = None, **options) -> tuple[Search, list[str]]:
        env = AutoExplore(dataset=str(dataset), **{"output": 40, **options})
        tasks = [task for split in ("train", "validation", "test") for task in env.tasks(split)]
        task = next(task for task in tasks if task.options["file"] == file)
        task = Task(task.id, {**task.options, "question": question or task.options["question"]})
        search = breadth_first(env, task, texts[task.options["repository"]])
        assert search.steps == len(env.snapshot().actions)
        return search, list(env.snapshot().actions)

    return play


def test_upper_folders_are_read_first_and_every_command_takes_a_step(walk):
    search, commands = walk("people/leave/athens.md")
    assert commands == [
        "cat README.md",
        "cd people",
        "cat pay.md",
        "cd ..",
        "cd stock",
        "cat 'green beans.md'",
        "cd ..",
        "cd people",
        "cd leave",
        "cat athens.md",
        "id athens.md",
    ]
    assert search == Search(success=True, steps=11, files_opened=4)


def test_the_first_file_that_has_all_words_is_named_right_or_wrong(walk):
    search, commands = walk("people/leave/athens.md", "What is paid?")
    assert commands[-1] == "id pay.md"
    assert not search.success


def test_a_file_is_read_further_than_the_environment_shows(walk):
    search, commands = walk("stock/green beans.md", "Where is the kettle?")
    assert commands[-2:] == ["cat 'green beans.md'", "id 'green beans.md'"]
    assert search.success


def test_words_of_the_path_count(walk):
    search, _ = walk("people/leave/athens.md", "Which people get leave and sick notes in athens?")
    assert search.success


@pytest.mark.parametrize(("horizon", "found"), [(11, True), (10, False)])
def test_the_horizon_ends_a_search_in_the_midst(walk, horizon, found):
    search, _ = walk("people/leave/athens.md", horizon=horizon)
    assert search == Search(found, horizon, 4)


def test_what_was_not_recognised_is_not_named(walk):
    search, commands = walk("people/leave/athens.md", "Where are the elephants?", horizon=50)
    assert sorted(command for command in commands if command.startswith("cat")) == [
        "cat 'green beans.md'",
        "cat README.md",
        "cat athens.md",
        "cat lisbon.md",
        "cat pay.md",
    ]
    assert not [command for command in commands if command.startswith("id")]
    assert search == Search(success=False, steps=11, files_opened=5)


def test_a_large_folder_is_read_by_its_ranges(walk):
    search, commands = walk("f4.md", page=2)
    assert commands == [
        "ls f1.md..f2.md",
        "cat f1.md",
        "cat f2.md",
        "ls",
        "ls f3.md..f5.md",
        "ls f3.md..f3.md",
        "cat f3.md",
        "ls",
        "ls f3.md..f5.md",
        "ls f4.md..f5.md",
        "cat f4.md",
        "id f4.md",
    ]
    assert search.success


def test_the_way_out_of_a_range_is_the_way_out_of_its_folder(walk):
    _, commands = walk("people/leave/athens.md", page=2, horizon=50)
    # the root is shown as two ranges, people and the rest
    assert commands[:8] == [
        "ls people..people",
        "ls",
        "ls stock..README.md",
        "cat README.md",
        "ls",
        "ls people..people",
        "cd people",
        "cat pay.md",
    ]
    assert commands[-1] == "id athens.md"


def test_a_file_with_the_words_of_the_question_ranks_above_one_without():
    assert BM25({"a": "tea and milk", "b": "green beans"}).ranking("Where are the green beans?") == ["b", "a"]


def test_a_rare_word_weighs_more_than_a_common_one():
    texts = {"a": "common common other", "b": "rare text other", "c": "common text other"}
    assert BM25(texts).ranking("common rare")[0] == "b"


def test_a_short_file_ranks_above_a_long_one_with_the_same_words():
    assert BM25({"long": "beans and many more words than that", "short": "beans"}).ranking("beans") == ["short", "long"]


def test_a_word_that_is_repeated_counts_more_than_once_but_less_than_another_word():
    texts = {"twice": "beans beans roast", "once": "beans roast water", "both": "beans green water"}
    assert BM25(texts).ranking("beans") == ["twice", "both", "once"]
    assert BM25(texts).ranking("green beans")[0] == "both"


def test_words_of_the_path_are_ranked_too_and_names_are_split():
    assert BM25({"a.md": "tea", "people/sick_notes.md": "tea"}).ranking("sick notes")[0] == "people/sick_notes.md"


def test_equal_files_are_ranked_by_path():
    assert BM25({"b": "tea", "c": "tea", "a": "tea"}).ranking("nothing of this") == ["a", "b", "c"]


def test_the_score_is_okapi_s():
    """By hand: equal lengths of four words, so that one occurrence weighs idf / (1 + 1.2)."""
    texts = {"x1": "beans tea milk", "x2": "roast roast roast", "x3": "water water water"}
    idf = 0.9808  # ln(1 + 2.5 / 1.5), of a word in one of three files
    scores = {file: BM25(texts)._score(file, frozenset({"beans", "roast"})) for file in texts}
    assert scores == pytest.approx({"x1": idf / 2.2, "x2": idf * 3 / 4.2, "x3": 0.0}, abs=1e-4)


# ---- without reading -------------------------------------------------------------------------------------------------


@pytest.fixture
def named(tmp_path):
    """Plays a question about a folder of files by their names; gives the search and its commands."""
    repository = tmp_path / "shop"
    for file in ("people/leave/athens.md", "people/athens.md", "people/pay/oslo.md", "stock/beans.md", "handbook.md"):
        (repository / file).parent.mkdir(parents=True, exist_ok=True)
        (repository / file).write_text("nothing")
    env = AutoExplore(folder_library(repository))

    def play(file: str, question: str) -> tuple[Search, list[str]]:
        task = Task("d0/shop/a#1", {"repository": "shop", "question": question, "file": file})
        search = by_names(env, task)
        assert search.steps == len(env.snapshot().actions)
        return search, list(env.snapshot().actions)

    return play


def test_folders_that_the_question_names_are_entered_first(named):
    search, commands = named("stock/beans.md", "Stock of Beans: weight. Which file covers it?")
    assert commands == ["cd stock", "id beans.md"]
    assert search == Search(success=True, steps=2, files_opened=0)


def test_a_file_is_named_in_a_folder_that_the_question_names_only(named):
    search, commands = named("people/leave/athens.md", "Leave in Athens: sick notes.")
    assert commands == ["cd people", "cd leave", "id athens.md"]
    assert search.success


def test_a_file_of_the_root_needs_no_folder(named):
    assert named("handbook.md", "Handbook on everything.")[1] == ["id handbook.md"]


def test_nothing_is_named_where_the_question_names_nothing(named):
    search, commands = named("stock/beans.md", "Who is asked about extension 17?")
    assert not search.success
    assert not [command for command in commands if command.startswith("id ")]


def test_the_file_that_ranks_first_is_walked_to_and_named(dataset):
    env = AutoExplore(dataset=str(dataset))
    task = next(t for split in ("train", "test") for t in env.tasks(split) if t.options["file"].count("/") == 2)
    repository = read_dataset(dataset).repositories[task.options["repository"]]
    index = BM25(dict(readable_files(repository).readable))
    folders = task.options["file"].count("/")
    assert by_rank(env, task, index) == Search(True, folders + 1, len(index))
    other = Task(task.id, {**task.options, "question": "Where are the green beans?"})
    assert not by_rank(env, other, index).success
