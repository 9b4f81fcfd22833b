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
    for city in ("athens", "berlin", "cairo", "dublin"):
        (folder / f"{city}.md").write_text(f"# opening hours in {city.title()}\n\nNobody knows.\n")
        topics = ("sick notes", "hourly wages", "parking permits", "fire drills")
        sections = (f"## {topic} for {city}\n\nNobody knows.\n\n" for topic in topics)
        (folder / "people" / f"{city}.md").write_text("".join(sections))
    return folder


@pytest.fixture
def dataset(shop):
    return ask_about({"shop": shop}, write_questions, per_file=1, seed=0)


def test_a_folder_is_asked_about(shop):
    library = open_library(str(shop))
    asked = [task.options["file"] for split in SPLITS for task in library.tasks[split]]
    assert {file: asked.count(file) for file in asked} == {
        **{f"{city}.md": 1 for city in ("athens", "berlin", "cairo", "dublin")},
        **{f"people/{city}.md": QUESTIONS_PER_FILE for city in ("athens", "berlin", "cairo", "dublin")},
    }


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


def test_a_folder_is_opened_once_however_it_is_spelled(shop, monkeypatch):
    library = open_library(str(shop))
    assert open_library(f"{shop}/people/..") is library
    monkeypatch.chdir(shop.parent)
    assert open_library("shop") is library
    monkeypatch.setenv("HOME", str(shop.parent))
    assert open_library("~/shop") is library


def test_one_relative_path_means_another_folder_elsewhere(shop, tmp_path, monkeypatch):
    shutil.copytree(shop, tmp_path / "far" / "shop")
    (tmp_path / "far" / "shop" / "rome.md").write_text("# opening hours in Rome\n\nNobody knows.\n")
    monkeypatch.chdir(tmp_path)
    near = open_library("shop")
    monkeypatch.chdir(tmp_path / "far")
    assert sum(map(len, open_library("shop").tasks.values())) == sum(map(len, near.tasks.values())) + 1


def test_the_company_is_the_same_each_time_and_another_with_another_seed():
    company, other = open_library("company:nano"), open_library("company:nano:1")
    assert open_library("company:nano") is company
    assert company.tasks["test"][0].id.split("/")[1] == "company-nano"
    assert [task.id for task in company.tasks["train"]] == [task.id for task in other.tasks["train"]]
    first, second = (library.sandbox("company-nano").run("cat directory.csv").output for library in (company, other))
    assert first != second


def test_a_copy_is_made_when_it_is_needed_and_again_when_it_has_gone(dataset, copies, tmp_path):
    library = Library(dataset)
    assert list(copies.iterdir()) == []
    first, second = library.sandbox("shop"), library.sandbox("shop", "people/cairo.md")
    first.run("cd people")
    assert (first.cwd, second.cwd) == (PurePosixPath("people"), PurePosixPath("."))
    assert second.run("echo 1 > cairo.md").failed
    assert second.root == first.root
    for lost in ("the copy", "its folder", "replaced"):
        root = library.sandbox("shop").root
        assert library.sandbox("shop").run("cat cairo.md").output.startswith("# opening hours"), lost
        assert len(list(copies.glob("*/copy"))) == 1
        if lost == "replaced":
            root.rename(tmp_path / "elsewhere")
            root.mkdir()
        else:
            shutil.rmtree(root if lost == "the copy" else root.parent)
    assert library.sandbox("shop").run("cat cairo.md").output.startswith("# opening hours")


def test_an_unknown_repository_or_file_is_refused(dataset, shop):
    library = Library(dataset)
    with pytest.raises(InvalidInput, match="'shp'.*'shop'"):
        library.sandbox("shp")
    for file in ("rome.md", "people", "./cairo.md", "people//cairo.md", "../shop/cairo.md", "", "\n"):
        with pytest.raises(InvalidInput, match="'shop'"):
            library.sandbox("shop", file)
    alone = folder_library(shop)
    assert dict(alone.tasks) == dict.fromkeys(SPLITS, ())
    assert alone.sandbox("shop", "people/cairo.md").run("ls").output.startswith("people/\n")


def test_a_copy_that_lost_the_file_is_made_again_and_those_who_walk_the_old_one_may_go_on(dataset):
    library = Library(dataset)
    old = library.sandbox("shop")
    (old.root / "cairo.md").unlink()
    assert library.sandbox("shop", "berlin.md").root == old.root
    assert library.sandbox("shop", "cairo.md").root != old.root
    assert old.run("cat berlin.md").output.startswith("# opening hours")
