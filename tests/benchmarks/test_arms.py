"""Common parts of the benchmarks: numbers over seeds, and tables between marks."""

from __future__ import annotations

import subprocess

import pytest
from arms import made_by, publish, publish_rows, published_rows, spread, table

from reflectrl.core import InvalidInput

PAGE = "before\n<!-- a -->\nold\n<!-- end -->\nbetween\n<!-- a more -->\nolder\n<!-- end -->\nafter\n"


def test_a_table_replaces_what_stands_between_its_own_marks(tmp_path):
    (tmp_path / "README.md").write_text(PAGE)
    publish(tmp_path / "README.md", "a", "new\n")
    publish(tmp_path / "README.md", "a more", "newer\n")
    assert (tmp_path / "README.md").read_text() == PAGE.replace("older", "newer").replace("old", "new")
    for text in ("nothing\n", "<!-- a -->\nopen\n", "<!-- end -->\n"):
        (tmp_path / "README.md").write_text(text)
        with pytest.raises(InvalidInput, match=r"<!-- a -->"):
            publish(tmp_path / "README.md", "a", "new\n")
        assert (tmp_path / "README.md").read_text() == text


def test_a_table_names_the_commit_that_made_it():
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert f" at commit {head.strip()}" in made_by("python benchmarks/some.py")
    assert " at commit 1a2b3c4, commit 5d6e7f8 by" in made_by("x", commits=["1a2b3c4", "5d6e7f8", "1a2b3c4"])


def test_new_rows_replace_those_of_the_same_name_and_others_stay(tmp_path):
    page = tmp_path / "page.md"
    head = table(["env", "arm", "mean"], [["a", "x", "1"], ["b", "x", "2"]])
    page.write_text(f"before\n<!-- t -->\n{head}\n<!-- end -->\n")
    publish_rows(page, "t", [["b", "x", "3"], ["b", "y", "4"]])
    rows = [[*row.values()] for row in published_rows(page, "t")]
    assert rows == [["a", "x", "1"], ["b", "x", "3"], ["b", "y", "4"]]
    assert page.read_text().startswith("before\n<!-- t -->\n| env | arm | mean |\n|---|---|---|\n| a | x | 1 |")


def test_the_interval_is_student_s_over_seeds():
    # mean 0.3, standard deviation 0.158, half width 2.776 * 0.158 / sqrt(5) = 0.196
    assert spread([0.1, 0.2, 0.3, 0.4, 0.5]) == "**30** ± 20"
    assert spread([0.256]) == "26"
    assert table(["", "s0"], [["random", "3"]]) == "|  | s0 |\n|---|---|\n| random | 3 |"
