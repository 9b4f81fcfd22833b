from __future__ import annotations

import json
import os
import shutil
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput
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

SPLITS = ("train", "validation", "test")


def ask(file: str, text: str) -> list[Pair]:
    """Ask about every line of a file."""
    return [(f"Where is {line}?", f"{file}: {line}") for line in text.splitlines()]


def make_repository(folder: Path, per_folder: int = 10) -> Path:
    for where in (".", "people", "people/two words"):
        (folder / where).mkdir(parents=True, exist_ok=True)
        for number in range(per_folder):
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


def test_each_readable_file_is_asked_about(dataset: Dataset, repository: Path) -> None:
    rows = [row for split in SPLITS for row in dataset.questions[split]]
    assert Counter(row.depth for row in rows) == {0: 20, 1: 20, 2: 20}
    assert len({row.id for row in rows}) == 60
    assert dataset.repositories == {"shop": repository}
    assert dataset.filtered.questions == {"surplus": 30}
    assert all(row.answer.startswith(f"{row.file}: line") for row in rows)


def test_the_same_seed_asks_the_same_and_another_does_not(dataset: Dataset, repository: Path) -> None:
    again, other = (ask_about({"shop": repository}, ask, per_file=2, seed=seed) for seed in (0, 1))
    assert again == dataset
    assert other.questions["test"] != dataset.questions["test"]
    kept = [{(row.file, row.question) for split in SPLITS for row in one.questions[split]} for one in (dataset, other)]
    assert kept[0] != kept[1]


def test_what_was_left_out_is_counted(repository: Path) -> None:
    (repository / "unclear.txt").write_text("line one\nnowhere else\nnowhere else")
    (repository / "odd.txt").write_text("\n\n")
    (repository / "mute.txt").write_text("word")
    filtered = ask_about({"shop": repository}, lambda f, t: ask(f, t) if len(t) > 5 else [], per_file=9, seed=0)
    assert filtered.filtered.questions == {"ambiguous": 1, "duplicate": 1}
    assert filtered.filtered.files == {"empty": 1, "nothing to ask": 1}


def test_only_visible_text_files_are_asked_about(tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    (shop / ".git" / "deep").mkdir(parents=True)
    (shop / ".git" / "config").write_text("secret")
    (shop / ".hidden").write_text("secret")
    (shop / "b.md").write_bytes("\ufeffCafé\r\n".encode())
    (shop / "latin.md").write_bytes(b"caf\xe9 rent")
    (shop / "photo.png").write_bytes(b"PNG\0rent")
    (shop / "large.csv").write_text("rent " * 300_000)
    (shop / "empty.md").write_text(" \n")
    (shop / "two\nlines.md").write_text("text")
    (shop / os.fsdecode(b"caf\xe9.md")).write_text("text")
    (shop / "link.md").symlink_to(shop / "b.md")
    (shop / "up").symlink_to(tmp_path)
    (shop / "gone.md").symlink_to("nowhere")
    os.mkfifo(shop / "pipe")
    (shop / "a").mkdir()
    (shop / "a" / "a.md").write_text("text")
    files = readable_files(shop)
    assert files.readable == (("a/a.md", "text"), ("b.md", "Café\r\n"))
    assert files.skipped == {
        "binary": 1,
        "empty": 1,
        "hidden": 2,
        "link": 3,
        "not UTF-8": 1,
        "not a file": 1,
        "too large": 1,
        "unprintable name": 2,
    }
    assert sorted(files.others) == ["empty.md", "large.csv", "latin.md", "photo.png"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files_and_folders_are_left_out(repository: Path) -> None:
    (repository / "file0.txt").chmod(0)
    (repository / "people").chmod(0)
    files = readable_files(repository)
    (repository / "people").chmod(stat.S_IRWXU)
    assert files.skipped == {"unreadable": 2}
    assert len(files.readable) == 9


@pytest.mark.parametrize("rival", ["large.csv", "latin.md"])
def test_a_file_that_cannot_be_asked_about_may_still_make_a_question_ambiguous(tmp_path: Path, rival: str) -> None:
    (tmp_path / "a.md").write_text("The rent of Lisbon")
    content = {"large.csv": b"rent,lisbon\n" + b"1,2\n" * 300_000, "latin.md": b"caf\xe9 rent lisbon"}[rival]
    (tmp_path / rival).write_bytes(content)
    pairs = {"a.md": [("Where is the rent of Lisbon?", "here")]}
    kept, rejected = keep_answerable("shop", readable_files(tmp_path), pairs, per_file=1, seed=0)
    assert (kept, rejected) == ((), {"ambiguous": 1})


def test_questions_are_split_by_file_at_each_depth() -> None:
    files = [f"{folder}{number}.md" for folder in ("", "a/", "a/b/") for number in range(20)]
    splits = split_questions([question("shop", file, number) for file in files for number in (1, 2, 3)], seed=0)
    found = {split: {row.file for row in splits[split]} for split in SPLITS}
    for depth in (0, 1, 2):
        assert [sum(file.count("/") == depth for file in found[split]) for split in SPLITS] == [14, 4, 2]
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == 60
    assert sum(map(len, splits.values())) == 180


def test_three_files_are_enough_for_each_split_and_two_are_trained_on() -> None:
    rows = [question("a", f"{number}.md") for number in range(3)] + [
        question("b", f"{number}.md") for number in range(2)
    ]
    splits = split_questions(rows, seed=0)
    assert [[row.repository for row in splits[split]] for split in ("validation", "test")] == [["a"], ["a"]]
    assert sorted(row.repository for row in splits["train"]) == ["a", "b", "b"]
    with pytest.raises(InvalidInput, match="2 files"):
        split_questions(rows[3:], seed=0)


def test_the_order_of_questions_and_repositories_does_not_matter() -> None:
    rows = [question(name, f"{number}.md") for name in ("a", "b") for number in range(10)]
    assert split_questions(rows, seed=0) == split_questions(rows[::-1], seed=0)
    train = [row.repository for row in split_questions(rows, seed=0)["train"]]
    assert train != sorted(train)


def test_a_dataset_is_read_as_written(dataset: Dataset, repository: Path, tmp_path: Path) -> None:
    (repository / ".git").mkdir()
    (repository / "link.md").symlink_to("file1.txt")
    folder = tmp_path / "runs" / "data"
    write_dataset(folder, dataset)
    read = read_dataset(folder)
    assert read.questions == dataset.questions
    assert read.repositories == {"shop": folder / "repositories" / "shop"}
    assert sorted(path.name for path in (folder / "repositories" / "shop").iterdir()) == sorted(
        ["people", *(f"file{number}.txt" for number in range(10))]
    )
    assert (folder / "repositories/shop/people/file1.txt").read_text() == (repository / "people/file1.txt").read_text()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["data"]


def test_a_dataset_that_could_not_be_read_is_not_written(dataset: Dataset, repository: Path, tmp_path: Path) -> None:
    (repository / dataset.questions["test"][0].file).unlink()
    with pytest.raises(InvalidInput, match="'shop'"):
        write_dataset(tmp_path / "data", dataset)
    assert not (tmp_path / "data").exists()
    shutil.copytree(make_repository(tmp_path / "again"), repository, dirs_exist_ok=True)
    write_dataset(tmp_path / "data", dataset)  # what the first attempt left is in nobody's way
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "data", "shop"]


def test_a_question_knows_the_shortest_way_to_its_file() -> None:
    deep = question("shop", "people/two words/it's.md", 3)
    assert deep.commands == ("cd people", "cd 'two words'", """id 'it'"'"'s.md'""")
    assert (deep.depth, deep.id) == (2, "d2/shop/people/two words/it's.md#3")
    assert (question("shop", "a.md").commands, question("shop", "a.md").id) == (("id a.md",), "d0/shop/a.md#1")


def test_a_row_is_one_object_of_json(dataset: Dataset, tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", dataset)
    row, *_ = map(json.loads, (tmp_path / "data" / "test.jsonl").read_text(encoding="utf-8").splitlines())
    first = dataset.questions["test"][0]
    assert row == {
        "repository": "shop",
        "question": first.question,
        "answer": first.answer,
        "file": first.file,
        "commands": list(first.commands),
        "number": first.number,
        "depth": first.depth,
    }


def test_questions_by_content_are_about_the_test_files_and_have_numbers_of_their_own(
    repository: Path, dataset: Dataset, tmp_path: Path
) -> None:
    both = ask_about({"shop": repository}, ask, per_file=2, seed=0, by_content=ask)
    assert {split: both.questions[split] for split in SPLITS} == dataset.questions
    rows = both.questions[BY_CONTENT]
    assert {row.file for row in rows} == {row.file for row in both.questions["test"]}
    assert {row.number for row in rows} == {3, 4}
    write_dataset(tmp_path / "data", both)
    assert read_dataset(tmp_path / "data").questions == both.questions


def test_a_dataset_goes_to_a_new_folder_outside_of_its_repositories(
    dataset: Dataset, repository: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for folder in (tmp_path / "data", repository / "runs" / "data"):
        with pytest.raises(InvalidInput, match=str(folder)):
            write_dataset(folder, dataset)
    assert not (repository / "runs").exists()


@pytest.mark.parametrize("name", ["../shop", "", ".shop", "two words", "a/b"])
def test_a_name_that_is_no_folder_name_is_refused(repository: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=repr(name)):
        ask_about({name: repository}, ask, per_file=1, seed=0)


def test_what_makes_no_dataset_is_refused(repository: Path, tmp_path: Path) -> None:
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
        ({"question": 3}, "question is 3"),
        ({"number": True}, "number is True"),
        ({"commands": "id a"}, "commands is 'id a'"),
        ({"commands": ["id a"]}, r"commands is \['id a'\]"),
        ({"depth": 7}, "depth is 7"),
        ({"file": "", "commands": ["id ''"], "depth": 0}, "''.*'shop'"),
        ({"file": "../train.jsonl", "commands": ["cd ..", "id train.jsonl"], "depth": 1}, r"'\.\./train.jsonl'"),
        ({"colour": "red"}, "'colour'"),
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


@pytest.mark.parametrize("content", [b"", b"{", b"[]\n", b"\xff", None])
def test_a_bad_file_of_a_split_is_named(dataset: Dataset, tmp_path: Path, content: bytes | None) -> None:
    write_dataset(tmp_path / "data", dataset)
    file = tmp_path / "data" / "validation.jsonl"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"validation\.jsonl"):
        read_dataset(tmp_path / "data")


@pytest.mark.parametrize(
    ("split", "number"), [("test", 9), (BY_CONTENT, 9), ("train", None)], ids=["test", "by content", "given twice"]
)
def test_a_file_in_two_splits_and_an_id_given_twice_are_refused(
    dataset: Dataset, tmp_path: Path, split: str, number: int | None
) -> None:
    row = dataset.questions["train"][0]
    row = replace(row, number=number or row.number)
    questions = {**dataset.questions, split: (*dataset.questions.get(split, ()), row)}
    with pytest.raises(InvalidInput, match=row.file):
        write_dataset(tmp_path / "data", replace(dataset, questions=questions))


def test_a_folder_that_is_no_dataset_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="gone"):
        read_dataset(tmp_path / "gone")
    write_dataset(tmp_path / "data", dataset)
    shutil.rmtree(tmp_path / "data" / "repositories" / "shop")
    with pytest.raises(InvalidInput, match="'shop'"):
        read_dataset(tmp_path / "data")
