"""``Library``: the tasks of a dataset with one private copy of each of its repositories, shared within a process."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from reflectrl.core import InvalidInput, Task, WorkFailed, nearest
from reflectrl.core.addresses import public_source
from reflectrl.core.files import user_path
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore.dataset import Dataset, Question, ask_about, read_dataset
from reflectrl.envs.auto_explore.questions import write_content_questions, write_questions
from reflectrl.envs.auto_explore.sandbox import Sandbox
from reflectrl.envs.auto_explore.scratch import Scratch
from reflectrl.envs.auto_explore.search import Index
from reflectrl.envs.auto_explore.sources import fetch

QUESTIONS_PER_FILE = 3


class Library:
    """Opens each repository once; every episode gets a view of its own."""

    def __init__(self, dataset: Dataset, scratch: Scratch | None = None) -> None:
        self._scratch = scratch  # keeps fetched files as long as the library is used
        self.tasks: Mapping[str, tuple[Task, ...]] = {
            split: tuple(map(_task, questions)) for split, questions in dataset.questions.items()
        }
        self._repositories = dataset.repositories
        self._copies: dict[str, Sandbox] = {}
        self._indexes: dict[str, Index] = {}

    def sandbox(self, repository: str, file: str | None = None) -> Sandbox:
        """Return a view of the private copy, at its root; a copy that is gone, or lacks ``file``, is made again.

        Raises:
            InvalidInput: the dataset has no such repository, or the repository no such file.
            WorkFailed: the repository cannot be copied.
        """
        if repository not in self._repositories:
            raise InvalidInput(
                f"repository {repository!r} is not in this dataset; {nearest(repository, self._repositories)}"
            )
        copy = self._copies.get(repository)
        if copy is None or not _holds(copy, file):
            copy = self._copies[repository] = Sandbox(self._repositories[repository])
            self._indexes.pop(repository, None)
            if not _holds(copy, file):
                raise InvalidInput(
                    f"file {file!r} is not in repository {repository!r}; expected a path from its root: "
                    "use env.tasks(split)."
                )
        return copy.view()

    def index(self, repository: str) -> Index:
        """Return the index of a repository's private copy, made at the first request.

        Raises:
            InvalidInput: the dataset has no such repository.
            WorkFailed: the repository cannot be copied or read.
        """
        view = self.sandbox(repository)
        if repository not in self._indexes:
            self._indexes[repository] = Index(view)
        return self._indexes[repository]


def _holds(copy: Sandbox, file: str | None) -> bool:
    """Return whether the copy still exists and ``id`` names ``file`` in it."""
    try:
        view = copy.view()
        return file is None or view.run(f"id {shlex.quote(file)}").answer == file
    except WorkFailed:
        return False


def _task(question: Question) -> Task:
    options = {"repository": question.repository, "question": question.question, "file": question.file}
    return Task(question.id, {**options, "group": f"depth {question.depth}"})


def open_library(dataset: str) -> Library:
    """Return the library of a dataset's folder or, with extractive questions about it, of a repository's source.

    It is opened once in a process: later changes of a folder are not seen.

    Raises:
        InvalidInput: neither a dataset nor a source, a source with a login, or a repository with too few questions.
        WorkFailed: the repository cannot be fetched.
    """
    folder = user_path(public_source(dataset))
    return _open(str(folder.resolve()) if dataset and folder.is_dir() else dataset)


@cache
def _open(dataset: str) -> Library:
    folder = Path(dataset)
    if (folder / "repositories").is_dir() and any((folder / f"{split}.jsonl").is_file() for split in SPLITS):
        return Library(read_dataset(folder))
    scratch = Scratch()
    name, path = fetch(dataset, scratch.folder)
    dataset_of_source = ask_about(
        {name: path}, write_questions, per_file=QUESTIONS_PER_FILE, seed=0, by_content=write_content_questions
    )
    return Library(dataset_of_source, scratch)
