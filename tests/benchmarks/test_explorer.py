"""The explorer's table, from small repositories outside training."""

from __future__ import annotations

from pathlib import Path

import pytest
from explorer import Packages, cells, report, shown, without_training

from reflectrl.config import load_recipe
from reflectrl.envs.auto_explore.dataset import UNSEEN, Dataset, Question, read_dataset, write_dataset


@pytest.fixture(scope="module")
def packages(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Packages:
    """Four questions about the shop; searches rank the right file first for two of them, and second for a third."""
    known = read_dataset(dataset)
    asked = {
        "people/leave/athens.md": "To whom do sick notes go?",
        "stock/green beans.md": "What is roasted on fridays, with a kettle?",
        "people/pay.md": "Who is paid by Wanda?",
        "README.md": "Xylophones?",
    }
    unseen = tuple(Question("shop", question, "so", file, 7) for file, question in asked.items())
    shelf = {
        split: tuple(Question("shelf", "Which?", "so", f"f{number}.md", 1) for number in numbers)
        for split, numbers in {"train": (1, 2), "validation": (3,), "test": (4,)}.items()
    }
    folder = tmp_path_factory.mktemp("unseen") / "dataset"
    write_dataset(folder, Dataset({**shelf, UNSEEN: unseen}, known.repositories))
    return Packages(folder, load_recipe("smollm2/explorer"), None)


def test_everyone_plays_the_same_questions_by_the_commands_they_have(packages, capsys):
    lines = list(without_training(packages))
    rows = {title: rest for title, *rest in map(cells, lines)}
    assert all(len(found) == 4 for _, found in lines)
    assert rows["expert"][0].startswith("**100**")
    assert rows["BM25 of the whole question, top 5"][0].startswith("**100**")  # there are five files
    assert rows["BM25 of the whole question, top 1"][1:] == ["-", "0.0", "0"]
    assert rows["breadth first"][2] != "0.0"
    found = dict((title, found) for title, found in lines)["search tool: all words, first file"]
    assert [one.steps for one in found] == [2, 2, 2, 1]  # the last question has no word to search for
    assert [one.success for one in found][:2] == [True, True]
    assert all(0 < one.read < 600 for one in found[:3])
    assert report(packages, lines).count("\n") == len(lines) + 2
    assert capsys.readouterr().out == "questions: shop 4\n\n"


def test_what_is_shown_of_files_counts_once():
    first = "Folder: /\nFound by tea:\n/a.md: té"
    assert shown([first, f"{first}\nResult: 12345", "Folder: /x\nResult: 12345"]) == len("/a.md: té") + 1 + 10
