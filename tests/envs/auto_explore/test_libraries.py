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


def test_a_task_is_a_row_of_the_dataset(dataset):
    for split, tasks in Library(dataset).tasks.items():
        assert [(task.id, task.options) for task in tasks] == [
            (row.id, {"repository": "shop", "question": row.question, "file": row.file})
            for row in dataset.questions[split]
        ]


def test_a_folder_with_questions_and_repositories_is_a_dataset(dataset, tmp_path):
    write_dataset(tmp_path / "data", dataset)
    assert open_library(str(tmp_path / "data")).tasks == Library(dataset).tasks


def test_a_dataset_that_lacks_a_split_is_not_taken_for_a_repository(dataset, tmp_path):
    write_dataset(tmp_path / "data", dataset)
    (tmp_path / "data" / "train.jsonl").unlink()
    with pytest.raises(InvalidInput, match="train.jsonl cannot be read"):
        open_library(str(tmp_path / "data"))


def test_a_repository_with_a_file_named_as_a_split_is_not_taken_for_a_dataset(shop):
    (shop / "train.jsonl").write_text('{"loss": 1}\n')
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


@pytest.mark.parametrize("source", ["", "gone", "company", "company:nano:x", "pypi:"])
def test_what_is_no_source_is_refused(source):
    with pytest.raises(InvalidInput, match="expected|Known"):
        open_library(source)


def test_the_company_is_the_same_each_time_and_another_with_another_seed():
    company, other = open_library("company:nano"), open_library("company:nano:1")
    assert open_library("company:nano") is company
    assert company.tasks["test"][0].id.split("/")[1] == "company-nano"
    assert [task.id for task in company.tasks["train"]] == [task.id for task in other.tasks["train"]]
    first, second = (library.sandbox("company-nano").run("cat directory.csv").output for library in (company, other))
    assert first != second


def test_a_copy_is_made_when_it_is_needed_and_once(dataset, copies):
    library = Library(dataset)
    assert list(copies.iterdir()) == []
    first, second = library.sandbox("shop"), library.sandbox("shop", "people/cairo.md")
    first.run("cd people")
    assert (first.cwd, second.cwd) == (PurePosixPath("people"), PurePosixPath("."))
    assert first.root == second.root
    assert [path.name for path in copies.iterdir()] == [first.root.parent.name]


def test_nobody_writes_to_a_copy_that_others_read(dataset):
    library = Library(dataset)
    assert "for reading only" in library.sandbox("shop").run("echo 1 > cairo.md").output
    assert library.sandbox("shop").run("cat cairo.md").output.startswith("# opening hours")


def test_a_copy_that_has_gone_is_made_again(dataset, copies):
    library = Library(dataset)
    gone = library.sandbox("shop").root
    shutil.rmtree(gone)
    assert library.sandbox("shop").run("cat cairo.md").output.startswith("# opening hours")
    shutil.rmtree(library.sandbox("shop").root.parent)
    assert library.sandbox("shop").run("cat cairo.md").output.startswith("# opening hours")
    assert len(list(copies.glob("*/copy"))) == 1


def test_a_folder_that_took_the_copys_place_is_not_used(dataset, tmp_path):
    library = Library(dataset)
    root = library.sandbox("shop").root
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    assert library.sandbox("shop").run("cat cairo.md").output.startswith("# opening hours")


def test_a_copy_that_lost_the_file_is_made_again_and_those_who_walk_the_old_one_may_go_on(dataset):
    library = Library(dataset)
    old = library.sandbox("shop")
    (old.root / "cairo.md").unlink()
    assert library.sandbox("shop", "berlin.md").root == old.root
    assert library.sandbox("shop", "cairo.md").root != old.root
    assert old.run("cat berlin.md").output.startswith("# opening hours")


def test_an_unknown_repository_or_file_is_refused(dataset):
    library = Library(dataset)
    with pytest.raises(InvalidInput, match=r"repository 'shp' is not in this dataset; did you mean 'shop'\?"):
        library.sandbox("shp")
    for file in ("rome.md", "people", "./cairo.md", "people//cairo.md", "../shop/cairo.md", "", "\n"):
        with pytest.raises(InvalidInput, match="is not in repository 'shop'; expected a path from its root"):
            library.sandbox("shop", file)


def test_a_folder_without_questions_has_copies_but_no_tasks(shop):
    library = folder_library(shop)
    assert set(library.tasks.values()) == {()}
    assert library.sandbox("shop", "people/cairo.md").run("ls").output.startswith("people/\n")
