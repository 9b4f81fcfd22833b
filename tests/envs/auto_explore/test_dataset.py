"""The dataset of AutoExplore: which files are asked about, the split by file, and its folder on disk."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore.ambiguity import Pair
from reflectrl.envs.auto_explore.dataset import (
    BY_CONTENT,
    Dataset,
    Question,
    ask_about,
    keep_answerable,
    read_dataset,
    readable_files,
    split_questions,
    write_dataset,
)


def ask(file: str, text: str) -> list[Pair]:
    """Ask about every line of a file."""
    return [(f"Where is {line}?", f"{file}: {line}") for line in text.splitlines()]


def make_repository(folder: Path) -> Path:
    for where in (".", "people", "people/two words"):
        (folder / where).mkdir(parents=True, exist_ok=True)
        for number in range(10):
            name = f"{Path(where).name or 'root'}{number}".replace(" ", "")
            text = "\n".join(f"line {word} of {name}" for word in ("one", "two", "three"))
            (folder / where / f"file{number}.txt").write_text(text)
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "shop")


@pytest.fixture
def dataset(repository: Path) -> Dataset:
    return ask_about({"shop": repository}, ask, per_file=2, seed=0)


def question(repository: str, file: str, number: int = 1) -> Question:
    return Question(repository, f"Where is {file} {number}?", "here", file, number)


def test_each_readable_file_is_asked_about_in_an_order_of_the_seed(dataset: Dataset, repository: Path) -> None:
    again, other = (ask_about({"shop": repository}, ask, per_file=2, seed=seed) for seed in (0, 1))
    assert again == dataset
    rows, of_other = ([row for split in SPLITS for row in one.questions[split]] for one in (dataset, other))
    assert Counter(row.depth for row in rows) == {0: 20, 1: 20, 2: 20}
    assert len({row.id for row in rows}) == 60
    assert all(row.answer.startswith(f"{row.file}: line") for row in rows)
    assert dataset.repositories == {"shop": repository}
    assert dataset.left_out["questions"] == {"surplus": 30}
    assert other.questions["test"] != dataset.questions["test"]
    assert {(row.file, row.question) for row in rows} != {(row.file, row.question) for row in of_other}


def test_what_was_left_out_is_counted(repository: Path) -> None:
    (repository / "unclear.txt").write_text("line one\nnowhere else\nnowhere else")
    (repository / "odd.txt").write_text("\n\n")
    (repository / "mute.txt").write_text("word")
    filtered = ask_about({"shop": repository}, lambda f, t: ask(f, t) if len(t) > 5 else [], per_file=9, seed=0)
    assert filtered.left_out["questions"] == {"ambiguous": 1, "duplicate": 1}
    assert filtered.left_out["files"] == {"empty": 1, "nothing to ask": 1}


def test_only_visible_text_files_are_asked_about(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / ".git" / "deep").mkdir(parents=True)
    (shop / ".git" / "config").write_text("secret")
    (shop / ".hidden").write_text("secret")
    (shop / "b.md").write_bytes("\ufeffCafé of Porto\r\n".encode())
    (shop / "latin.md").write_bytes(b"caf\xe9 porto")
    (shop / "photo.png").write_bytes(b"PNG\0rent")
    (shop / "large.csv").write_text("rent lisbon " * 100_000)
    (shop / "empty.md").write_text(" \n")
    (shop / "two\nlines.md").write_text("text")
    (shop / os.fsdecode(b"caf\xe9.md")).write_text("text")
    (shop / "link.md").symlink_to(shop / "b.md")
    (shop / "up").symlink_to(tmp_path)
    (shop / "gone.md").symlink_to("nowhere")
    os.mkfifo(shop / "pipe")
    (shop / "a").mkdir()
    (shop / "a" / "a.md").write_text("The rent of Lisbon")
    files = readable_files(shop)
    assert files.readable == (("a/a.md", "The rent of Lisbon"), ("b.md", "Café of Porto\r\n"))
    counts = {"binary": 1, "empty": 1, "hidden": 2, "link": 3, "not UTF-8": 1, "not a file": 1, "too large": 1}
    assert files.skipped == {**counts, "unprintable name": 2}
    assert sorted(files.others) == ["empty.md", "large.csv", "latin.md", "photo.png"]
    pairs = {"a/a.md": [("Where is the rent of Lisbon?", "here")], "b.md": [("Where is Porto?", "here")]}
    assert keep_answerable("shop", files, pairs, per_file=1, seed=0) == ((), {"ambiguous": 2})


def test_questions_are_split_by_file_at_each_depth() -> None:
    files = [f"{folder}{number}.md" for folder in ("", "a/", "a/b/") for number in range(20)]
    rows = [question("shop", file, number) for file in files for number in (1, 2, 3)]
    splits = split_questions(rows, seed=0)
    assert splits == split_questions(rows[::-1], seed=0)
    found = {split: {row.file for row in splits[split]} for split in SPLITS}
    for depth in (0, 1, 2):
        assert [sum(file.count("/") == depth for file in found[split]) for split in SPLITS] == [14, 4, 2]
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 60
    assert sum(map(len, splits.values())) == 180
    assert [row.depth for row in splits["train"]] != sorted(row.depth for row in splits["train"])


def test_three_files_are_enough_for_each_split_and_two_are_trained_on() -> None:
    rows = [question(name, f"{number}.md") for name, count in (("a", 3), ("b", 2)) for number in range(count)]
    splits = split_questions(rows, seed=0)
    assert [[row.repository for row in splits[split]] for split in ("validation", "test")] == [["a"], ["a"]]
    assert sorted(row.repository for row in splits["train"]) == ["a", "b", "b"]
    with pytest.raises(InvalidInput, match="2 files"):
        split_questions(rows[3:], seed=0)


def test_a_dataset_is_read_as_written(repository: Path, tmp_path: Path) -> None:
    (repository / ".git").mkdir()
    (repository / "link.md").symlink_to("file1.txt")
    folder = tmp_path / "runs" / "data"
    first = ask_about({"shop": repository}, ask, per_file=2, seed=0)
    dataset = ask_about({"shop": repository}, ask, per_file=2, seed=0, by_content=ask)
    rows = dataset.questions[BY_CONTENT]  # about the test files, with numbers of their own
    assert dataset.questions == {**first.questions, BY_CONTENT: rows}
    assert {row.file for row in rows} == {row.file for row in dataset.questions["test"]}
    assert {row.number for row in rows} == {3, 4}
    write_dataset(folder, dataset)
    read = read_dataset(folder)
    assert read.questions == dataset.questions
    assert read.repositories == {"shop": folder / "repositories" / "shop"}
    copied = {path.relative_to(read.repositories["shop"]) for path in read.repositories["shop"].rglob("*.*")}
    assert copied == {path.relative_to(repository) for path in repository.rglob("*.txt")}
    assert (folder / "repositories/shop/people/file1.txt").read_text() == (repository / "people/file1.txt").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["data"]


def test_an_unreadable_dataset_is_not_written(dataset: Dataset, repository: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, repository / "runs" / "data"):
        with pytest.raises(InvalidInput, match=str(folder)):
            write_dataset(folder, dataset)
    assert not (repository / "runs").exists()
    (repository / dataset.questions["test"][0].file).unlink()
    with pytest.raises(InvalidInput, match="'shop'"):
        write_dataset(tmp_path / "data", dataset)
    assert not (tmp_path / "data").exists()
    make_repository(repository)
    write_dataset(tmp_path / "data", dataset)  # what the first attempt left does not matter
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "shop"]


def test_a_row_has_the_shortest_way_to_its_file(dataset: Dataset, tmp_path: Path) -> None:
    deep = question("shop", "people/two words/it's.md", 3)
    assert deep.commands == ("cd people", "cd 'two words'", """id 'it'"'"'s.md'""")
    assert (deep.depth, deep.id) == (2, "d2/shop/people/two words/it's.md#3")
    write_dataset(tmp_path / "data", dataset)
    row, *_ = map(json.loads, (tmp_path / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines())
    first = dataset.questions["test"][0]
    names = ("repository", "question", "answer", "file", "number", "depth")
    assert row == {"commands": list(first.commands), **{name: getattr(first, name) for name in names}}


def test_what_makes_no_dataset_is_refused(repository: Path, tmp_path: Path) -> None:
    for name in ("../shop", "", ".shop", "two words"):
        with pytest.raises(InvalidInput, match=repr(name)):
            ask_about({name: repository}, ask, per_file=1, seed=0)
    with pytest.raises(InvalidInput, match="0 questions"):
        ask_about({"shop": repository}, ask, per_file=0, seed=0)
    with pytest.raises(InvalidInput, match="gone"):
        ask_about({"gone": tmp_path / "gone"}, ask, per_file=1, seed=0)
    with pytest.raises(InvalidInput, match="0 files"):
        ask_about({"shop": repository}, lambda _file, _text: [], per_file=1, seed=0)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"repository": "shp"}, "'shp'.*'shop'"),
        ({"commands": ["id a"]}, r"commands is \['id a'\]"),
        ({"depth": True}, "depth is True"),
        ({"file": "../train.jsonl", "commands": ["cd ..", "id train.jsonl"], "depth": 1}, r"'\.\./train.jsonl'"),
    ],
    ids=str,
)
def test_a_bad_row_is_named(dataset: Dataset, tmp_path: Path, change: dict[str, object], fact: str) -> None:
    write_dataset(tmp_path / "data", dataset)
    file = tmp_path / "data" / "train.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **change})
    file.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(InvalidInput, match=rf"train.jsonl, line 2.*{fact}"):
        read_dataset(tmp_path / "data")


@pytest.mark.parametrize(("split", "number"), [("test", 9), (BY_CONTENT, 9), ("train", None)])
def test_a_file_in_two_splits_and_an_id_given_twice_are_refused(
    dataset: Dataset, tmp_path: Path, split: str, number: int | None
) -> None:
    row = dataset.questions["train"][0]
    row = replace(row, number=number or row.number)
    questions = {**dataset.questions, split: (*dataset.questions.get(split, ()), row)}
    with pytest.raises(InvalidInput, match=row.file):
        write_dataset(tmp_path / "data", replace(dataset, questions=questions))
