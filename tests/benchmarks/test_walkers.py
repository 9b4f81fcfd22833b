"""The walkers, on small real folders, through the real environment."""

from __future__ import annotations

import pytest
from walkers import Search, breadth_first, by_rank

from reflectrl.core import Task
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import read_dataset
from reflectrl.envs.auto_explore.files import readable_files


@pytest.fixture
def walk(dataset):
    """Play a question breadth first, and return the search and its commands."""
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
    assert commands[:6] == ["cat README.md", "cd people", "cat pay.md", "cd ..", "cd stock", "cat 'green beans.md'"]
    assert commands[6:] == ["cd ..", "cd people", "cd leave", "cat athens.md", "id athens.md"]
    assert search == Search(success=True, steps=11, files_opened=4)
    for horizon, found in ((11, True), (10, False)):
        assert walk("people/leave/athens.md", horizon=horizon)[0] == Search(found, horizon, 4)


def test_a_large_folder_is_read_by_its_ranges(walk):
    search, commands = walk("f4.md", page=2)
    assert commands[:5] == ["ls f1.md..f2.md", "cat f1.md", "cat f2.md", "ls", "ls f3.md..f5.md"]
    assert commands[5:9] == ["ls f3.md..f3.md", "cat f3.md", "ls", "ls f3.md..f5.md"]
    assert commands[9:] == ["ls f4.md..f5.md", "cat f4.md", "id f4.md"]
    assert search.success


def test_the_file_that_ranks_first_is_walked_to_and_named(dataset):
    env = AutoExplore(dataset=str(dataset))
    task = next(t for split in ("train", "test") for t in env.tasks(split) if t.options["file"].count("/") == 2)
    repository = read_dataset(dataset).repositories[task.options["repository"]]
    index = BM25(dict(readable_files(repository).readable))
    folders = task.options["file"].count("/")
    assert by_rank(env, task, index) == Search(True, folders + 1, len(index))
    other = Task(task.id, {**task.options, "question": "Where are the green beans?"})
    assert not by_rank(env, other, index).success
