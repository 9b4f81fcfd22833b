"""``Library``: the tasks of a dataset and one private copy of each of its repositories, shared by a process."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from reflectrl.core import InvalidInput, Task, nearest
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore.dataset import Dataset, Question, ask_about, read_dataset
from reflectrl.envs.auto_explore.questions import write_questions
from reflectrl.envs.auto_explore.sandbox import Sandbox
from reflectrl.envs.auto_explore.sources import fetch

QUESTIONS_PER_FILE = 3


class Library:
    """Opens each repository once; every episode walks a view of its own."""

    def __init__(self, dataset: Dataset) -> None:
        self.tasks: Mapping[str, tuple[Task, ...]] = {
            split: tuple(_task(question) for question in dataset.questions[split]) for split in SPLITS
        }
        self._repositories = dataset.repositories
        self._copies: dict[str, Sandbox] = {}

    def sandbox(self, repository: str) -> Sandbox:
        """A view of the private copy, at its root; a copy that has gone is made again."""
        if repository not in self._repositories:
            raise InvalidInput(
                f"repository {repository!r} is not in this dataset; {nearest(repository, self._repositories)}"
            )
        copy = self._copies.get(repository)
        if copy is None or not copy.root.is_dir():
            copy = self._copies[repository] = Sandbox(self._repositories[repository])
        return copy.view()


def _task(question: Question) -> Task:
    return Task(question.id, {"repository": question.repository, "question": question.question, "file": question.file})


@cache
def open_library(dataset: str) -> Library:
    """The library of a dataset's folder or, with extractive questions about it, of a repository's source.

    Raises:
        InvalidInput: neither a dataset nor a source, or a repository without questions.

    """
    if (Path(dataset) / "train.jsonl").is_file():
        return Library(read_dataset(Path(dataset)))
    folder = tempfile.TemporaryDirectory(prefix="reflectrl-")
    atexit.register(folder.cleanup)
    name, path = fetch(dataset, Path(folder.name))
    return Library(ask_about({name: path}, write_questions, per_file=QUESTIONS_PER_FILE, seed=0))
