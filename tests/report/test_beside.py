"""One task before and after RLFT, from run folders whose episodes are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import reflectrl
from run_folders import HOSTILE, episode, make_run

from reflectrl.core import Trajectory
from reflectrl.report.beside import print_before_and_after, shortest_pair


def steps(played: Trajectory, count: int) -> Trajectory:
    return replace(played, turns=played.turns * count)


def test_the_pair_is_of_one_task_that_was_lost_and_then_won_in_the_fewest_steps() -> None:
    lost, won = episode("a", success=False), episode("a")
    long, others = episode("b", success=False), [episode("b"), episode("c")]
    assert shortest_pair([steps(long, 3), lost], [*others, won]) == (lost, won)
    assert shortest_pair([episode("a")], [won]) is None
    assert shortest_pair([lost], [episode("d")]) is None


@pytest.fixture
def run(tmp_path: Path) -> Path:
    before = steps(episode("t", success=False, text=f"Room 1.\n{HOSTILE}", reflection="Lost.", menu=("left", "up")), 9)
    return make_run(tmp_path / "run", {"sft": [before], "rlft": [episode("t", text="Room 1.", reflection=HOSTILE)]})


def test_both_episodes_stand_side_by_side_with_words_and_actions(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_before_and_after(run)
    out = capsys.readouterr().out
    assert "The task t, before RLFT and after it." in out
    lines = out.splitlines()
    [head] = [line for line in lines if "before RLFT: fails, 9 steps" in line]
    assert head.rstrip().endswith("after RLFT: reaches its goal, 1 step")
    [first] = [line for line in lines if "1. up  Lost." in line]
    assert "1. right" in first
    assert "and 1 more" in out
    assert "\x1b" not in out


def test_a_run_without_such_a_task_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"sft": [episode("t")], "rlft": [episode("t")]})
    assert "no recorded task" in reflectrl("report", run, "--episode").out
