"""One task before and after RLFT, from run folders with known episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command_line import reflectrl
from run_folders import HOSTILE, episode, evaluated, make_run

from reflectrl.core import Trajectory
from reflectrl.core.run_files import eval_episodes_file
from reflectrl.prompts import PromptFormat
from reflectrl.report.runs import read_runs
from reflectrl.report.terminal import MAX_STEPS, print_before_and_after, telling_pair
from reflectrl.rollout.record import Header, write_trajectories


def steps(played: Trajectory, count: int) -> Trajectory:
    return replace(played, turns=played.turns * count)


def test_the_pair_is_the_longest_success_and_the_shortest_failure() -> None:
    lost, won = episode("a", success=False), steps(episode("a"), 3)
    others = [episode("a"), steps(episode("a"), MAX_STEPS + 1), steps(episode("b"), 2), steps(episode("c"), 5)]
    before = [steps(lost, 2), lost, episode("b", success=False)]
    assert telling_pair(before, [*others, won]) == (lost, won)
    assert telling_pair([episode("a")], [won]) is None
    assert telling_pair([lost], [episode("d")]) is None


@pytest.fixture
def run(tmp_path: Path) -> Path:
    before = steps(episode("t", success=False, text=f"Room 1.\n{HOSTILE}", reflection="Lost.", menu=("left", "up")), 9)
    return make_run(tmp_path / "run", {"sft": [before], "rlft": [episode("t", text="Room 1.", reflection=HOSTILE)]})


def test_both_episodes_stand_side_by_side_with_words_and_actions(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_before_and_after(*read_runs([run]))
    out = capsys.readouterr().out
    assert "The task t, before RLFT and after it." in out
    lines = out.splitlines()
    [head] = [line for line in lines if "before RLFT: fails, 9 steps" in line]
    assert head.rstrip().endswith("after RLFT: reaches its goal, 1 step")
    [first] = [line for line in lines if "1. up  Lost." in line]
    assert "1. right" in first
    assert "and 1 more" in out
    assert "\x1b" not in out


def test_what_the_policy_does_with_blank_reflections_stands_beside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = evaluated(tmp_path / "run", 0.9, 0.5)
    lost, won = episode("t", success=False), episode("t", reflection="Go up.", menu=("left", "up"))
    blank = replace(lost, turns=episode("t", reflection="", menu=("left", "down")).turns)
    files = {("sft", "local"): lost, ("rlft", "local"): won, ("rlft", "blank"): blank}
    for (policy, reflections), played in files.items():
        name = eval_episodes_file(policy, reflections, "sampled", None)
        write_trajectories(folder / name, Header("number_line", {}, PromptFormat()), [played])
    print_before_and_after(*read_runs([folder]))
    [head] = [line for line in capsys.readouterr().out.splitlines() if "1. up  Go up." in line]
    assert head.rstrip().endswith("1. down")


def test_a_run_without_such_a_task_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", {"sft": [episode("t")], "rlft": [episode("t")]})
    assert "no recorded task" in reflectrl("report", run, "--episode").out
