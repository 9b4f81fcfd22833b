"""The walkers, on small real folders, through the real environment."""

from __future__ import annotations

from walkers import Search, by_rank

from reflectrl.core import Task
from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.envs.auto_explore.bm25 import BM25
from reflectrl.envs.auto_explore.dataset import read_dataset
from reflectrl.envs.auto_explore.files import readable_files


def test_the_file_that_ranks_first_is_walked_to_and_named(dataset):
    env = AutoExplore(dataset=str(dataset))
    task = next(t for split in ("train", "test") for t in env.tasks(split) if t.options["file"].count("/") == 2)
    repository = read_dataset(dataset).repositories[task.options["repository"]]
    index = BM25(dict(readable_files(repository).readable))
    folders = task.options["file"].count("/")
    assert by_rank(env, task, index) == Search(True, folders + 1, len(index))
    other = Task(task.id, {**task.options, "question": "Where are the green beans?"})
    assert not by_rank(env, other, index).success
