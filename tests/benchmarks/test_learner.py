"""The page on forgotten groups of tasks: what counts as forgotten, errors of a value head, and the plots."""

from __future__ import annotations

from pathlib import Path

import pytest
from learner import forgotten, report, value_error, weakest_and_best
from records import chose, turn_of
from run_folders import evaluated, iteration

from reflectrl.core import Observation, Task, Trajectory
from reflectrl.core.layout import training_episodes_file
from reflectrl.prompts import PromptFormat
from reflectrl.report.runs import Run, read_runs
from reflectrl.rollout.record import Header, write_trajectories


def episode(*steps: tuple[float, float], last_value: float = 0.0) -> Trajectory:
    """Return an episode of the group ``red`` with the given value estimate and reward of each step."""
    observation = Observation("", ("go",))
    turns = tuple(turn_of(observation, ("go",), None, chose(0, "go", value=value), reward) for value, reward in steps)
    done = not last_value
    return Trajectory(Task("t", {"group": "red"}), 0, turns, done, not done, done, last_value)


def test_an_error_is_the_estimate_minus_the_discounted_return_that_followed() -> None:
    assert value_error(episode((1.0, 0.0), (0.25, 1.0)), 0.5) == [0.5, -0.75]
    # a truncated episode counts the value head's estimate of the rest
    assert value_error(episode((1.0, 0.0), (0.25, 1.0), last_value=2.0), 0.5) == [0.0, -1.75]


def trained(folder: Path, success: float, red_ends: float) -> Run:
    """Write a run of 40 iterations, in whose second half the success of the group ``red`` is ``red_ends``."""
    lines = [
        iteration(number, success_by_group={"blue": 0.9, "red": 0.8 if number < 20 else red_ends}, kl=0.01)
        for number in range(40)
    ]
    evaluated(folder, success, 0.5, metrics=lines)
    header = Header("number_line", {}, PromptFormat())
    write_trajectories(folder / training_episodes_file(35), header, [episode((0.5, 0.0))])
    (run,) = read_runs([folder])
    return run


def test_a_group_is_forgotten_that_ends_far_below_its_own_best(tmp_path: Path) -> None:
    assert forgotten(trained(tmp_path / "lost", 0.5, 0.1)) == ["red"]
    assert forgotten(trained(tmp_path / "kept", 0.5, 0.7)) == []


@pytest.mark.slow
def test_the_page_shows_the_weakest_and_the_best_run_of_both_sides(tmp_path: Path) -> None:
    before = [trained(tmp_path / f"before{n}", success, 0.1) for n, success in enumerate((0.8, 0.6, 0.7))]
    after = [trained(tmp_path / "after", 0.9, 0.9)]
    assert [each.run.name for each in weakest_and_best("", before)] == ["before1", "before0"]
    text = report(before, after, tmp_path, "python benchmarks/learner.py")
    assert "| as shipped first | 3 | 70 | 60 | 3 of 6 |" in text
    assert "| now | 1 | 90 | 90 | 0 of 2 |" in text
    assert "| as shipped first, weakest: 60 % | 50 | 90 | 10 | - | +0.50 | 0.01 0.01 0.01 | 0.60 to 0.60 |" in text
    assert len(list(tmp_path.glob("learner-*.png"))) == text.count("](../docs/images/learner-") == 3
