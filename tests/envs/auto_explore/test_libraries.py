"""Library: what a dataset or a source is opened as, and the copies that episodes walk."""

from __future__ import annotations

import shutil
from pathlib import PurePosixPath

import pytest

from reflectrl.core import InvalidInput
from reflectrl.core.types import SPLITS
from reflectrl.envs.auto_explore.dataset import ask_about, write_dataset
from reflectrl.envs.auto_explore.libraries import QUESTIONS_PER_FILE, Library, folder_library, open_library
from reflectrl.envs.auto_explore.questions import write_questions


@pytest.fixture
def shop(tmp_path):
    folder = tmp_path / "shop"
    (folder / "people").mkdir(parents=True)
    topics = ("sick notes", "hourly wages", "parking permits", "fire drills")
    for city in ("athens", "berlin", "cairo", "dublin"):
        (folder / f"{city}.md").write_text(f"# opening hours in {city.title()}\n\nUnknown.\n")
        sections = (f"## {topic} for {city}\n\nUnknown.\n\n" for topic in topics)
        (folder / "people" / f"{city}.md").write_text("".join(sections))
    return folder


@pytest.fixture
def dataset(shop):
    return ask_about({"shop": shop}, write_questions, per_file=1, seed=0)


def test_a_folder_is_asked_about_once_however_it_is_spelled(shop, tmp_path, monkeypatch):
    library = open_library(str(shop))
    asked = [task.options["file"] for split in SPLITS for task in library.tasks[split]]
    assert {file: asked.count(file) for file in asked} == {
        str(path.relative_to(shop)): QUESTIONS_PER_FILE if path.parent.name == "people" else 1
        for path in shop.rglob("*.md")
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for spelled in (f"{shop}/people/..", "shop", "~/shop"):
        assert open_library(spelled) is library
    shutil.copytree(shop, tmp_path / "far" / "shop")
    monkeypatch.chdir(tmp_path / "far")
    assert open_library("shop") is not library


def test_a_folder_with_questions_and_repositories_is_a_dataset_even_if_a_split_is_missing(dataset, shop, tmp_path):
    write_dataset(tmp_path / "data", dataset)
    tasks = open_library(str(tmp_path / "data")).tasks
    assert {split: [(task.id, task.options) for task in tasks[split]] for split in SPLITS} == {
        split: [(row.id, {"repository": "shop", "question": row.question, "file": row.file}) for row in rows]
        for split, rows in dataset.questions.items()
    }
    (tmp_path / "data").rename(tmp_path / "torn")
    (tmp_path / "torn" / "train.jsonl").unlink()
    with pytest.raises(InvalidInput, match=r"train\.jsonl"):
        open_library(str(tmp_path / "torn"))
    (shop / "train.jsonl").write_text('{"loss": 1}\n')  # no repository becomes a dataset by that
    assert len(open_library(str(shop)).tasks["train"]) > 0


def test_the_company_is_opened_once_and_another_with_another_seed():
    company, other = open_library("company:nano"), open_library("company:nano:1")
    assert open_library("company:nano") is company
    assert company.tasks["test"][0].id.split("/")[1] == "company-nano"
    first, second = (library.sandbox("company-nano").run("cat directory.csv").output for library in (company, other))
    assert first != second


def test_a_copy_is_made_when_it_is_needed_and_again_when_it_or_the_file_has_gone(dataset, copies, tmp_path):
    library = Library(dataset)
    assert list(copies.iterdir()) == []
    first, second = library.sandbox("shop"), library.sandbox("shop", "people/cairo.md")
    first.run("cd people")
    assert (first.cwd, second.cwd) == (PurePosixPath("people"), PurePosixPath("."))
    assert second.run("echo 1 > cairo.md").failed
    assert second.root == first.root
    for lost in ("the copy", "its folder", "replaced", "the file"):
        old = library.sandbox("shop")
        if lost == "the file":
            (old.root / "cairo.md").unlink()
            assert library.sandbox("shop", "berlin.md").root == old.root
        elif lost == "replaced":
            old.root.rename(tmp_path / "elsewhere")
            old.root.mkdir()
        else:
            shutil.rmtree(old.root if lost == "the copy" else old.root.parent)
        assert library.sandbox("shop", "cairo.md").root != old.root, lost
    assert old.run("cat berlin.md").output.startswith("# opening hours")  # walks in the old copy may go on


def test_an_unknown_repository_or_file_is_refused(dataset, shop):
    library = Library(dataset)
    with pytest.raises(InvalidInput, match="'shp'.*'shop'"):
        library.sandbox("shp")
    for file in ("rome.md", "people", "./cairo.md", "people//cairo.md", "/cairo.md", "../shop/cairo.md", "", "\n"):
        with pytest.raises(InvalidInput, match="'shop'"):
            library.sandbox("shop", file)
    alone = folder_library(shop)
    assert dict(alone.tasks) == dict.fromkeys(SPLITS, ())
    assert alone.sandbox("shop", "people/cairo.md").run("ls").output.startswith("people/\n")
