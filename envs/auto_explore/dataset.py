"""The labelled dataset of AutoExplore: questions about repositories, each with the one file that answers it.

As in appendix C.3 of the paper, a row is made in reverse: a writer reads a file and asks questions that it answers.
Here, questions that another file answers too are dropped, and no file has questions in two splits.
"""

from __future__ import annotations

import random
import re
import reprlib
import shlex
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from reflectrl.core import InvalidInput, WorkFailed, nearest
from reflectrl.core.files import in_one_move
from reflectrl.core.jsonl import decode, read_jsonl, write_jsonl
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore.ambiguity import Pair, answerable, paraphrase
from reflectrl.envs.auto_explore.files import RepositoryFiles, readable_files, visible_files

BY_CONTENT = "test_by_content"
"""An additional split: questions about the files of "test" that name neither them nor their folders."""
UNSEEN = "unseen"
"""An additional split: questions about repositories that no other split asks about."""

Write = Callable[[str, str], Sequence[Pair]]
"""Function from a file's path and text to unfiltered questions and answers about it."""


@dataclass(frozen=True)
class Question:
    """One row of the dataset: (n, q, a, f, c*) of the paper."""

    repository: str
    """Name of the repository, which is the name of its folder."""
    question: str
    answer: str
    file: str
    """Path with slashes, relative to the repository's root."""
    number: int
    """Number of the question among those of its file, from 1."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Commands of a shortest path to the file: ``("cd people", "id lisbon.md")``; names are quoted for a shell."""
        *folders, name = self.file.split("/")
        return (*(f"cd {shlex.quote(folder)}" for folder in folders), f"id {shlex.quote(name)}")

    @property
    def depth(self) -> int:
        """Number of folders to enter: 0 for a file in the root."""
        return self.file.count("/")

    @property
    def id(self) -> str:
        """Unique id, which begins with the depth, so that a prefix selects all tasks of a depth."""
        return f"d{self.depth}/{self.repository}/{self.file}#{self.number}"


@dataclass(frozen=True)
class Dataset:
    """Questions, with their repositories."""

    questions: Mapping[str, tuple[Question, ...]]
    """Rows by split: train, validation, test, and perhaps ``BY_CONTENT`` and ``UNSEEN``."""
    repositories: Mapping[str, Path]
    """Folder of each repository, by name."""
    left_out: Mapping[str, Mapping[str, int]] = field(default_factory=dict, compare=False)
    """Numbers of ``"questions"`` and ``"files"`` that were left out, by reason (a hidden or unreadable folder counts
    once); empty for a dataset that was read from a folder."""


def ask_about(
    repositories: Mapping[str, Path],
    write: Write,
    *,
    per_file: int,
    seed: int,
    by_content: Write | None = None,
    paraphrased: bool = False,
    held_out: Collection[str] = (),
) -> Dataset:
    """Ask about every file of the repositories; keep at most ``per_file`` clear questions of each, and split by file.

    Args:
        repositories: folders by name.
        write: writes the questions about a file.
        per_file: maximum number of questions about a file.
        seed: seed of the order and of the splits.
        by_content: writes further questions about the files of the test split, for ``BY_CONTENT``.
        paraphrased: rephrase the questions of ``write``, see ``paraphrase``.
        held_out: names of the repositories that only the split ``UNSEEN`` asks about.

    Raises:
        InvalidInput: a name that is not a folder name, a folder that cannot be read, too few clear questions.
    """
    contents = {name: readable_files(folder) for name, folder in sorted(repositories.items())}
    questions, rejected, mute = _written(contents, write, per_file, seed, paraphrased=paraphrased)
    skipped = sum((Counter(files.skipped) for files in contents.values()), Counter({"nothing to ask": mute}))
    left_out = {"questions": dict(sorted(rejected.items())), "files": dict(sorted((+skipped).items()))}
    unseen = [question for question in questions if question.repository in held_out]
    if held_out and not unseen:
        raise InvalidInput(f"no clear questions were found about {sorted(held_out)}; hold out other repositories.")
    splits = split_questions((question for question in questions if question.repository not in held_out), seed)
    if unseen:
        splits = {**splits, UNSEEN: tuple(random.Random(f"{seed} {UNSEEN}").sample(unseen, len(unseen)))}
    if by_content is not None:
        tested = {(question.repository, question.file) for question in splits["test"]}
        found, *_ = _written(contents, by_content, per_file, seed, only=tested)
        # numbered after the questions of the first kind
        further = [replace(question, number=per_file + question.number) for question in found]
        if further:
            order = random.Random(f"{seed} {BY_CONTENT}").sample(further, len(further))
            splits = {**splits, BY_CONTENT: tuple(order)}
    return Dataset(splits, dict(repositories), left_out)


def _written(
    contents: Mapping[str, RepositoryFiles],
    write: Write,
    per_file: int,
    seed: int,
    only: Collection[tuple[str, str]] | None = None,
    *,
    paraphrased: bool = False,
) -> tuple[list[Question], Counter[str], int]:
    """Return clear questions on all files or ``only`` some, with counts of dropped ones and of files without any."""
    questions: list[Question] = []
    rejected: Counter[str] = Counter()
    mute = 0
    for name, files in contents.items():
        pairs = {file: write(file, text) for file, text in files.readable if only is None or (name, file) in only}
        mute += sum(not written for written in pairs.values())
        kept, faults = keep_answerable(name, files, pairs, per_file=per_file, seed=seed, paraphrased=paraphrased)
        questions.extend(kept)
        rejected.update(faults)
    return questions, rejected, mute


def keep_answerable(
    repository: str,
    files: RepositoryFiles,
    pairs: Mapping[str, Sequence[Pair]],
    *,
    per_file: int,
    seed: int,
    paraphrased: bool = False,
) -> tuple[tuple[Question, ...], Mapping[str, int]]:
    """Drop the questions that not exactly one file answers, then all but ``per_file`` of each file in a seeded order.

    With ``paraphrased``, the questions are rephrased between the two steps.

    Returns:
        The questions by file, and the number of dropped ones by reason.
    """
    _check_name(repository)
    if per_file < 1:
        raise InvalidInput(f"{per_file} questions per file were asked for; expected 1 or more.")
    texts = {**dict(files.readable), **files.others}
    kept = answerable(texts, pairs)
    clear = paraphrase(texts, kept.pairs) if paraphrased else kept.pairs
    plain = sum(map(len, kept.pairs.values())) - sum(map(len, clear.values()))
    questions: list[Question] = []
    surplus = 0
    for file, good in sorted(clear.items()):
        order = random.Random(f"{seed} {repository} {file}").sample(good, len(good))
        surplus += len(order[per_file:])
        for number, (question, answer) in enumerate(order[:per_file], start=1):
            questions.append(Question(repository, question, answer, file, number))
    dropped = {"not clear in other words": plain, "surplus": surplus}
    return tuple(questions), {**kept.rejected, **{reason: count for reason, count in dropped.items() if count}}


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
            write_jsonl(fresh / f"{split}.jsonl", map(_row, dataset.questions[split]))
        for name, source in dataset.repositories.items():
            _copy(source, fresh / "repositories" / name)
        read_dataset(fresh)


_ROW = ("repository", "question", "answer", "file", "commands", "number", "depth")
"""Keys of a row as JSON; commands and depth follow from the file."""


def _row(question: Question) -> dict[str, object]:
    return {name: getattr(question, name) for name in _ROW}


def _copy(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for file in visible_files(source, Counter()):
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source / file, target / file)
        except OSError as error:
            raise WorkFailed(f"{source / file} cannot be copied to {target} ({error}); fix that and repeat.") from error


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
    further = [split for split in (BY_CONTENT, UNSEEN) if (folder / f"{split}.jsonl").is_file()]
    for split in (*SPLITS, *further):
        found: list[Question] = []
        for where, value in read_jsonl(folder / f"{split}.jsonl"):
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
                f"{folder / split}.jsonl has no questions; every split needs one: write the dataset again."
            )
        questions[split] = tuple(found)
    return Dataset(questions, repositories)


def _question(value: object, where: str) -> Question:
    """Read a row, exactly as ``write_dataset`` writes it."""
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} is a {type(value).__name__}; expected an object with {', '.join(_ROW)}.")
    derived = {name: value.pop(name, None) for name in ("commands", "depth")}
    question = decode(Question, value, where)
    for name, given in derived.items():
        expected = _row(question)[name]
        if isinstance(expected, tuple):
            expected = list(expected)
        if given != expected or type(given) is not type(expected):
            raise InvalidInput(f"{where}, {name} is {reprlib.repr(given)}; expected {expected} for this file.")
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
            f"repository name {repository!r} is not a folder name; expected letters, digits, '.', '_' and '-', "
            "not beginning with a dot."
        )
