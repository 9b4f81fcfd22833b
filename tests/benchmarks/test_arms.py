"""Common parts of the benchmarks: numbers over seeds, and tables between marks."""

from __future__ import annotations

import subprocess

import pytest
from arms import ENVIRONMENTS, HERE, made_by, objective, objectives, publish, spread, table

from reflectrl.config import load_recipe
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


def test_an_objective_is_named_with_all_its_terms():
    ppo = load_recipe(
        "dangerous_taxi/nano_paper_objective",
        ["rlft.update={kind: ppo, epsilon: 0.1, num_iterations: 3, num_minibatches: 1, target_kl: null}"],
    )
    assert objective(ppo) == (
        "PPO with clip range 0.1 and 3 updates an iteration, no baseline, no discount, no entropy bonus"
    )
    changes = ["rlft.advantage={kind: batch}", "rlft.gamma=0.5"]
    assert objective(load_recipe("number_line/nano_reinforce", changes)) == (
        "REINFORCE, the batch's mean as the baseline, discount 0.5, advantages divided by their deviation, "
        "no entropy bonus, 8 replayed successes beside 32 new episodes"
    )


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_published_table_of_learning_names_the_objective_of_its_recipe(env):
    page = (HERE / "README.md").read_text(encoding="utf-8")
    for kind in ("learning", "ablations"):
        shown = page.partition(f"<!-- {kind}_{env} -->\n")[2].partition("<!-- end -->")[0]
        assert "Not measured yet" in shown or objectives(load_recipe(ENVIRONMENTS[env].recipe)) in shown


def test_the_interval_is_student_s_over_seeds():
    # mean 0.3, standard deviation 0.158, half width 2.776 * 0.158 / sqrt(5) = 0.196
    assert spread([0.1, 0.2, 0.3, 0.4, 0.5]) == "**30** ± 20"
    assert spread([0.256]) == "26"
    assert table(["", "s0"], [["random", "3"]]) == "|  | s0 |\n|---|---|\n| random | 3 |"
