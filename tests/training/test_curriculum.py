from __future__ import annotations

import pytest
from records import chose, turn_of

from reflectrl.config.rlft import Stage
from reflectrl.core import InvalidInput, Observation, Task, Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.training.curriculum import Curriculum

WINDOW = {"success_threshold": 0.5, "window": 2}


@pytest.mark.parametrize(
    ("stages", "successes", "ends"),
    [
        ([Stage("one", 2), Stage("two", 1)], [1.0, 1.0, 0.0], [2, 3]),  # by their lengths
        ([Stage("one", 100, **WINDOW)], [0.2, 0.6, 0.4], [3]),  # means 0.4, then 0.5
        ([Stage("one", 100, **WINDOW)] * 2, [1.0] * 4, [2, 4]),  # each stage waits for its own full window
        ([Stage("one", 2, **WINDOW)], [0.0, 0.0], [2]),
    ],
)
def test_a_stage_ends_after_its_iterations_or_at_its_threshold(stages, successes, ends):
    curriculum = Curriculum(stages)
    found = []
    for number, success in enumerate(successes, start=1):
        assert curriculum.stage is stages[len(found)]
        if curriculum.add(success):
            curriculum.end_stage()
            found.append(number)
    assert found == ends
    assert curriculum.finished


def test_a_stage_plays_all_training_tasks_or_those_with_its_prefixes():
    env = NumberLine(size=6)
    train = list(env.tasks("train"))
    assert Stage("all", 1).choose(env) == train
    some = Stage("some", 1, tasks=("0-", "3-")).choose(env)
    assert some == [task for task in train if task.id[0] in "03"]
    assert 0 < len(some) < len(train)
    with pytest.raises(InvalidInput, match=r"'far' .*'77'.*number_line"):
        Stage("far", 1, tasks=("77",)).choose(env)


@pytest.mark.parametrize(
    ("threshold", "rewards", "success", "worth"),
    [
        (None, [-5.0], True, True),
        (None, [5.0], False, False),
        (0.5, [-0.5, 1.0], False, True),
        (0.5, [0.4], True, False),
    ],
)
def test_successful_episodes_are_worth_replaying_or_those_of_a_return(threshold, rewards, success, worth):
    turns = [turn_of(Observation("Here.", ("go",)), ("go",), None, chose(0, "go"), reward) for reward in rewards]
    episode = Trajectory(Task("t"), 0, tuple(turns), terminated=True, truncated=False, success=success)
    assert Stage("one", 1, replay_threshold=threshold).worth_replaying(episode) == worth
