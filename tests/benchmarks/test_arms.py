"""What the benchmarks share: numbers over seeds, and tables that stand between marks."""

from __future__ import annotations

import subprocess

import pytest
from arms import made_by, publish, spread, table

from reflectrl.core import InvalidInput

PAGE = "before\n<!-- a -->\nold\n<!-- end -->\nbetween\n<!-- a more -->\nolder\n<!-- end -->\nafter\n"


def test_a_table_replaces_what_stands_between_its_own_marks(tmp_path):
    (tmp_path / "README.md").write_text(PAGE)
    publish(tmp_path / "README.md", "a", "new\n")
    publish(tmp_path / "README.md", "a more", "newer\n")
    assert (tmp_path / "README.md").read_text() == PAGE.replace("older", "newer").replace("old", "new")


@pytest.mark.parametrize("text", ["nothing\n", "<!-- a -->\nopen\n", "<!-- end -->\n"])
def test_a_page_without_marks_is_refused_and_left_alone(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(InvalidInput, match=r"no lines '<!-- a -->' and '<!-- end -->'"):
        publish(tmp_path / "README.md", "a", "new\n")
    assert (tmp_path / "README.md").read_text() == text


def test_a_table_names_the_commit_that_made_it():
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout
    assert f" at commit {head.strip()}" in made_by("python benchmarks/some.py")


def test_the_interval_is_student_s_over_seeds():
    # mean 0.3, standard deviation 0.158, half width 2.776 * 0.158 / sqrt(5) = 0.196
    assert spread([0.1, 0.2, 0.3, 0.4, 0.5]) == "**30** ± 20"


def test_one_seed_has_no_interval():
    assert spread([0.256]) == "26"


def test_cells_become_markdown():
    assert table(["", "s0"], [["random", "3"]]) == "|  | s0 |\n|---|---|\n| random | 3 |"
