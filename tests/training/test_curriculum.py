from __future__ import annotations

import pytest
from records import chose, turn_of

from reflectrl.config.rlft import Stage
from reflectrl.core import InvalidInput, Observation, Task, Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.training.curriculum import Curriculum


def episode(*rewards, success=False):
    decision = chose(0, "wait")
    turns = tuple(turn_of(Observation("Here.", ("wait",)), ("wait",), None, decision, reward) for reward in rewards)
    return Trajectory(Task("t"), 0, turns, terminated=True, truncated=False, success=success)


# ---- the order of stages ---------------------------------------------------------------------------------------------


def test_a_stage_ends_after_its_iterations():
    curriculum = Curriculum([Stage("one", 2), Stage("two", 1)])
    assert curriculum.stage.name == "one"
    assert [curriculum.advance(0.0), curriculum.stage.name] == [False, "one"]
    assert [curriculum.advance(0.0), curriculum.stage.name] == [True, "two"]
    assert not curriculum.finished
    assert curriculum.advance(0.0)
    assert curriculum.finished


def test_a_threshold_ends_a_stage_early():
    curriculum = Curriculum([Stage("one", 100, success_threshold=0.5, window=2), Stage("two", 100)])
    assert [curriculum.advance(success) for success in (0.2, 0.6, 0.4)] == [False, False, True]  # means .4 then .5
    assert curriculum.stage.name == "two"


def test_a_threshold_waits_for_a_full_window():
    curriculum = Curriculum([Stage("one", 100, success_threshold=0.5, window=3)])
    assert [curriculum.advance(1.0) for _ in range(3)] == [False, False, True]


def test_successes_of_one_stage_do_not_count_in_the_next():
    stage = Stage("one", 100, success_threshold=0.9, window=2)
    curriculum = Curriculum([stage, stage])
    assert [curriculum.advance(1.0) for _ in range(4)] == [False, True, False, True]


def test_without_a_threshold_success_ends_nothing():
    curriculum = Curriculum([Stage("one", 6)])
    assert not any(curriculum.advance(1.0) for _ in range(5))


# ---- the tasks of a stage --------------------------------------------------------------------------------------------


def test_a_stage_plays_all_training_tasks_or_those_with_its_prefixes():
    env = NumberLine(size=6)
    train = list(env.tasks("train"))
    assert Stage("all", 1).choose(env) == train
    some = Stage("some", 1, tasks=("0-", "3-")).choose(env)
    assert some == [task for task in train if task.id[0] in "03"]
    assert 0 < len(some) < len(train)


def test_prefixes_that_match_no_task_are_refused():
    with pytest.raises(
        InvalidInput, match=r"stage 'far' asks for tasks that start with \['77'\], but .*number_line.* none"
    ):
        Stage("far", 1, tasks=("77",)).choose(NumberLine(size=6))


# ---- what is worth replaying -----------------------------------------------------------------------------------------


def test_successful_episodes_are_worth_replaying():
    stage = Stage("one", 1)
    assert stage.worth_replaying(episode(-5.0, success=True))
    assert not stage.worth_replaying(episode(5.0, success=False))


def test_a_replay_threshold_looks_at_the_return_instead():
    stage = Stage("one", 1, replay_threshold=0.5)
    assert stage.worth_replaying(episode(-0.5, 1.0))
    assert not stage.worth_replaying(episode(-0.5, 0.9, success=True))
