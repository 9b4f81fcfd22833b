"""The labelled dataset of AutoExplore: questions about repositories, each with the one file that answers it.

As in appendix C.3 of the paper, a row is made backwards: a writer reads a file and asks what that file answers. Here
the questions that another file answers too are then dropped, and no file is asked about in two splits.
"""

from __future__ import annotations

import json
import random
import re
import reprlib
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from reflectrl.core import InvalidInput, WorkFailed, nearest
from reflectrl.core.files import in_one_move
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore.ambiguity import Pair, answerable
from reflectrl.envs.auto_explore.files import RepositoryFiles, readable_files, visible_files

__all__ = [
    "BY_CONTENT",
    "Dataset",
    "Filtered",
    "Question",
    "RepositoryFiles",
    "Writer",
    "ask_about",
    "commands_to",
    "keep_answerable",
    "read_dataset",
    "readable_files",
    "split_questions",
    "write_dataset",
]

BY_CONTENT = "test_by_content"
"""A further split: questions about the files of "test" that name neither them nor their folders."""

FIELDS: Mapping[str, type] = {
    "repository": str,
    "question": str,
    "answer": str,
    "file": str,
    "commands": list,
    "number": int,
    "depth": int,
}
"""Of a row as JSON."""


@dataclass(frozen=True)
class Question:
    """One row of the dataset: (n, q, a, f, c*) of the paper."""

    repository: str
    """Its name, which is a folder name."""
    question: str
    answer: str
    file: str
    """Path with slashes, relative to the repository's root."""
    commands: tuple[str, ...]
    """The shortest way to the answer: ``("cd people", "id lisbon.md")``; names are quoted as for a shell."""
    number: int
    """Counts the questions of one file, from 1."""

    @property
    def depth(self) -> int:
        """How many folders are to be entered: 0 for a file in the root."""
        return self.file.count("/")

    @property
    def id(self) -> str:
        """Unique; begins with the depth, so that a prefix selects one."""
        return f"d{self.depth}/{self.repository}/{self.file}#{self.number}"


@dataclass(frozen=True)
class Filtered:
    """What did not become part of a dataset, as numbers by reason."""

    questions: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, int] = field(default_factory=dict)
    """A hidden or unreadable folder counts once."""


@dataclass(frozen=True)
class Dataset:
    """Questions, and the repositories they are about."""

    questions: Mapping[str, tuple[Question, ...]]
    """By split: train, validation, test, and perhaps ``BY_CONTENT``."""
    repositories: Mapping[str, Path]
    """Folder of each repository, by name."""
    filtered: Filtered = field(default=Filtered(), compare=False)
    """Known where the questions were written, not where they are read from a file."""


class Writer(Protocol):
    """Asks questions about a file."""

    def write(self, file: str, text: str) -> Sequence[Pair]:
        """Questions and answers, unfiltered."""
        ...


def ask_about(
    repositories: Mapping[str, Path],
    writer: Writer | Callable[[str, str], Sequence[Pair]],
    *,
    per_file: int,
    seed: int,
    by_content: Callable[[str, str], Sequence[Pair]] | None = None,
) -> Dataset:
    """Ask about every file of the repositories; keep at most ``per_file`` clear questions of each, and split by file.

    Args:
        repositories: folders by name.
        writer: asks about a file.
        per_file: questions of a file.
        seed: shuffles.
        by_content: asks about the files of the test split once more, for ``BY_CONTENT``.

    Raises:
        InvalidInput: a name that is no folder name, a folder that cannot be read, too few clear questions.

    """
    write = writer if callable(writer) else writer.write
    questions: list[Question] = []
    rejected: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    contents: dict[str, RepositoryFiles] = {}
    for name, folder in sorted(repositories.items()):
        files = contents[name] = readable_files(folder)
        pairs = {file: write(file, text) for file, text in files.readable}
        kept, faults = keep_answerable(name, files, pairs, per_file=per_file, seed=seed)
        questions.extend(kept)
        rejected.update(faults)
        skipped.update(files.skipped)
        skipped.update({"nothing to ask": sum(not written for written in pairs.values())})
    filtered = Filtered(dict(sorted(rejected.items())), dict(sorted((+skipped).items())))
    splits = split_questions(questions, seed)
    if by_content is not None and (further := _by_content(contents, splits["test"], by_content, per_file, seed)):
        splits = {**splits, BY_CONTENT: further}
    return Dataset(splits, dict(repositories), filtered)


def _by_content(
    contents: Mapping[str, RepositoryFiles],
    test: Sequence[Question],
    write: Callable[[str, str], Sequence[Pair]],
    per_file: int,
    seed: int,
) -> tuple[Question, ...]:
    """Questions of a second kind about the files of the test split, numbered after those of the first."""
    asked = {(question.repository, question.file) for question in test}
    questions: list[Question] = []
    for name, files in contents.items():
        pairs = {file: write(file, text) for file, text in files.readable if (name, file) in asked}
        kept, _ = keep_answerable(name, files, pairs, per_file=per_file, seed=seed)
        questions += [replace(question, number=per_file + question.number) for question in kept]
    return tuple(random.Random(f"{seed} {BY_CONTENT}").sample(questions, len(questions)))


def keep_answerable(
    repository: str, files: RepositoryFiles, pairs: Mapping[str, Sequence[Pair]], *, per_file: int, seed: int
) -> tuple[tuple[Question, ...], Mapping[str, int]]:
    """Drop the questions that not exactly one file answers, then all but ``per_file`` of each file in a seeded order.

    Returns:
        The questions by file, and the number of dropped ones by reason.

    """
    _check_name(repository)
    if per_file < 1:
        raise InvalidInput(f"{per_file} questions per file were asked for; expected 1 or more.")
    kept = answerable({**dict(files.readable), **files.others}, pairs)
    questions: list[Question] = []
    surplus = 0
    for file, good in sorted(kept.pairs.items()):
        order = random.Random(f"{seed} {repository} {file}").sample(good, len(good))
        surplus += len(order[per_file:])
        for number, (question, answer) in enumerate(order[:per_file], start=1):
            questions.append(Question(repository, question, answer, file, commands_to(file), number))
    return tuple(questions), {**kept.rejected, **({"surplus": surplus} if surplus else {})}


def commands_to(file: str) -> tuple[str, ...]:
    """The shortest way to a file: enter its folders, name it."""
    *folders, name = file.split("/")
    return (*(f"cd {shlex.quote(folder)}" for folder in folders), f"id {shlex.quote(name)}")


def split_questions(questions: Iterable[Question], seed: int) -> Mapping[str, tuple[Question, ...]]:
    """Split 7:2:1 by file, so that no file is asked about in two splits.

    Each depth of each repository is split by itself, and has test and validation files if it has three files. The
    questions of a split are shuffled.

    Raises:
        InvalidInput: no depth of any repository has three files.

    """
    strata: defaultdict[tuple[str, int], defaultdict[str, list[Question]]]
    strata = defaultdict(lambda: defaultdict(list))
    for question in questions:
        strata[question.repository, question.depth][question.file].append(question)
    splits: dict[str, list[Question]] = {split: [] for split in SPLITS}
    for (repository, depth), files in sorted(strata.items()):
        order = random.Random(f"{seed} {repository} {depth}").sample(sorted(files), len(files))
        for split, part in _parts(order).items():
            splits[split].extend(question for file in part for question in files[file])
    if not splits["test"]:
        raise InvalidInput(
            f"clear questions were found for {sum(map(len, strata.values()))} files; a dataset needs three files at "
            "one depth of one repository, one for each split: add files, or ask with another writer."
        )
    for split, rows in splits.items():
        rows.sort(key=lambda question: (question.repository, question.file, question.number))
        random.Random(f"{seed} {split}").shuffle(rows)
    return {split: tuple(rows) for split, rows in splits.items()}


def _parts(files: list[str]) -> Mapping[str, list[str]]:
    count = len(files)
    test, validation = (0, 0) if count < 3 else (max(1, (count + 5) // 10), max(1, (2 * count + 5) // 10))
    return {
        "test": files[:test],
        "validation": files[test : test + validation],
        "train": files[test + validation :],
    }


def write_dataset(folder: Path, dataset: Dataset) -> None:
    """Write questions and copies of the repositories' visible files; the folder appears, complete, in one move.

    Raises:
        InvalidInput: the folder exists or lies in a repository, or the dataset could not be read back.
        WorkFailed: a file cannot be copied.

    """
    if folder.exists():
        raise InvalidInput(f"{folder} exists; expected a new folder for the dataset: delete it or give another one.")
    for name, source in dataset.repositories.items():
        _check_name(name)
        if folder.resolve().is_relative_to(source.resolve()):
            raise InvalidInput(f"{folder} lies in repository {source}, which is copied; expected a folder outside.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with in_one_move(folder) as fresh:
        fresh.mkdir()
        for split in dataset.questions:
            lines = (json.dumps(_row(question), ensure_ascii=False) + "\n" for question in dataset.questions[split])
            (fresh / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8", newline="\n")
        for name, source in dataset.repositories.items():
            _copy(source, fresh / "repositories" / name)
        read_dataset(fresh)


def _row(question: Question) -> dict[str, object]:
    return {name: getattr(question, name) for name in FIELDS}


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in visible_files(source, Counter()):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source / file, target / file)
        except OSError as error:
            raise WorkFailed(
                f"{source / file} cannot be copied to {target} ({error}); mend that and repeat."
            ) from error


def read_dataset(folder: Path) -> Dataset:
    """Read what ``write_dataset`` wrote.

    Raises:
        InvalidInput: a missing folder, split, repository or file, a bad row (with file and line), an id that occurs
            twice, a file in two splits.

    """
    if not (folder / "repositories").is_dir():
        raise InvalidInput(
            f"{folder} has no folder 'repositories'; expected the folder of a dataset: see write_dataset."
        )
    repositories = {path.name: path for path in sorted((folder / "repositories").iterdir()) if path.is_dir()}
    visible = {name: frozenset(visible_files(path, Counter())) for name, path in repositories.items()}
    questions: dict[str, tuple[Question, ...]] = {}
    split_of: dict[tuple[str, str], str] = {}
    ids: set[str] = set()
    further = [BY_CONTENT] if (folder / f"{BY_CONTENT}.jsonl").is_file() else []  # older datasets have none
    for split in (*SPLITS, *further):
        found: list[Question] = []
        for where, value in _lines(folder / f"{split}.jsonl"):
            question = _question(value, where)
            _check_file(question, visible, where)
            mine = "test" if split == BY_CONTENT else split
            other = split_of.setdefault((question.repository, question.file), mine)
            if other != mine:
                raise InvalidInput(f"{where} asks about {question.file!r}, as {other} does; a file has one split.")
            if question.id in ids:
                raise InvalidInput(f"{where} is the second question {question.id!r}; number the questions of a file.")
            ids.add(question.id)
            found.append(question)
        if not found:
            raise InvalidInput(
                f"{folder / split}.jsonl has no questions; every split needs one: write the dataset anew."
            )
        questions[split] = tuple(found)
    return Dataset(questions, repositories)


def _lines(path: Path) -> Iterator[tuple[str, object]]:
    """Yield ``("FILE, line N", value)``."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}); expected a file of JSON lines.") from error
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else [], start=1):
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(f"{where} is not JSON ({error.msg}); remove the line or write the file anew.") from error
        except (
            ValueError,
            RecursionError,
        ) as error:  # numbers of thousands of digits, thousands of lists in each other
            raise InvalidInput(f"{where} is no question; remove the line or write the file anew.") from error


def _question(value: object, where: str) -> Question:
    """A row, exactly as ``write_dataset`` writes it."""
    if not isinstance(value, dict) or set(value) != set(FIELDS):
        given = ", ".join(sorted(value)) if isinstance(value, dict) else reprlib.repr(value)
        raise InvalidInput(f"{where} has {given}; expected an object with {', '.join(FIELDS)}.")
    row: dict[str, Any] = value
    for name, kind in FIELDS.items():
        if type(row[name]) is not kind:
            given = reprlib.repr(row[name])
            raise InvalidInput(f"{where}, {name} is {given}; expected a value of type {kind.__name__}.")
    fields = {name: row[name] for name in FIELDS if name != "depth"}
    question = Question(**{**fields, "commands": tuple(row["commands"])})
    if question.commands != commands_to(question.file):
        given = reprlib.repr(row["commands"])
        raise InvalidInput(f"{where}, commands are {given}; expected {list(commands_to(question.file))}.")
    if re.search("[\ud800-\udfff]", question.question + question.answer):
        raise InvalidInput(f"{where} holds half of a character; remove the line.")
    if question.depth != row["depth"]:
        raise InvalidInput(f"{where}, depth is {row['depth']}; expected {question.depth}, the folders to enter.")
    return question


def _check_file(question: Question, visible: Mapping[str, frozenset[str]], where: str) -> None:
    if question.repository not in visible:
        raise InvalidInput(f"{where} names repository {question.repository!r}; {nearest(question.repository, visible)}")
    if question.file not in visible[question.repository]:
        raise InvalidInput(
            f"{where} names file {question.file!r}, which repository {question.repository!r} lacks; "
            "copy the file there or remove the line."
        )


def _check_name(repository: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", repository):
        raise InvalidInput(
            f"repository name {repository!r} is no folder name; expected letters, digits, '.', '_' and '-', "
            "not beginning with a dot."
        )
