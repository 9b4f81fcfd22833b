from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain
from statistics import fmean

import pytest
from records import chose, turn_of
from tiny_rlft import config

from reflectrl.config.training import Lesson, Replay
from reflectrl.core import InvalidInput, Observation, Task, Trajectory
from reflectrl.envs.number_line import NumberLine
from reflectrl.rollout.iteration import outcome_means
from reflectrl.training.curriculum import Curriculum, fresh_episodes, replayed_episodes


def episode(rewards, *, success):
    turns = [turn_of(Observation("Here.", ("go",)), ("go",), None, chose(0, "go"), reward) for reward in rewards]
    return Trajectory(Task("t"), 0, tuple(turns), terminated=True, truncated=False, success=success)


WINDOW = {"success_threshold": 0.5, "window": 2}


def test_an_ended_stage_can_be_followed_but_not_made_longer(tmp_path):
    then = Curriculum([Lesson("one", 2)])
    then.end_lesson()
    for lessons in ([Lesson("one", 2)], [Lesson("one", 2), Lesson("two", 9)]):
        now = Curriculum(lessons)
        now.index = then.index
        now.check_ended(then.ended, tmp_path)
    now = Curriculum([Lesson("one", 4)])
    now.index = then.index
    with pytest.raises(InvalidInput, match="'one' has ended after at most 2 iterations; now it is 'one' with 4"):
        now.check_ended(then.ended, tmp_path)


@pytest.mark.parametrize(
    ("lessons", "successes", "ends"),
    [
        ([Lesson("one", 2), Lesson("two", 1)], [1.0, 1.0, 0.0], [2, 3]),  # by their lengths
        ([Lesson("one", 100, **WINDOW)], [0.2, 0.6, 0.4], [3]),  # means 0.4, then 0.5
        ([Lesson("one", 100, **WINDOW)] * 2, [1.0] * 4, [2, 4]),  # each lesson waits for its own full window
        ([Lesson("one", 2, **WINDOW)], [0.0, 0.0], [2]),
    ],
)
def test_a_stage_ends_after_its_iterations_or_at_its_threshold(lessons, successes, ends):
    curriculum = Curriculum(lessons)
    found = []
    for number, success in enumerate(successes, start=1):
        assert curriculum.lesson is lessons[len(found)]
        if curriculum.add(success):
            curriculum.end_lesson()
            found.append(number)
    assert found == ends
    assert curriculum.finished


def test_a_stage_plays_all_training_tasks_or_those_with_its_prefixes():
    env = NumberLine(size=6)
    train = list(env.tasks("train"))
    assert Lesson("all", 1).choose(env) == train
    some = Lesson("some", 1, tasks=("0-", "3-")).choose(env)
    assert some == [task for task in train if task.id[0] in "03"]
    assert 0 < len(some) < len(train)
    with pytest.raises(InvalidInput, match=r"'far' .*'77'.*number_line"):
        Lesson("far", 1, tasks=("77",)).choose(env)


def test_tasks_that_failed_lately_are_drawn_more_often(tmp_path):
    env, curriculum = NumberLine(size=6), Curriculum([Lesson("one", 9)])
    first, second, *others = env.tasks("train")
    won = [replace(episode([1.0], success=True), task=task) for task in (first, second, *others)]
    curriculum.note(won * 5)  # fails once in 2 ** 5, as far as is known
    curriculum.note([replace(won[0], success=False)])
    drawn = {}
    for priority in (0.0, 0.5, 1.0):
        args = config(tmp_path, episodes=200, task_priority=priority)
        names = [each.task.id for each in fresh_episodes(curriculum, env, args, 0, 0)]
        drawn[priority] = names.count(first.id) / 200
    even, failed = 1 / len(won), 0.5 / (0.5 + len(others) / 32)
    assert drawn[0.0] == pytest.approx(even, abs=0.08)
    assert drawn[0.5] == pytest.approx((even + failed) / 2, abs=0.12)
    assert drawn[1.0] == pytest.approx(failed, abs=0.12)
    curriculum.note([replace(won[0], success=True)] * 9)
    assert curriculum.failures[first.id] < 0.01


@pytest.mark.parametrize("priority", [0.0, 0.6])
def test_success_is_weighted_by_the_tasks_of_the_lesson(priority, tmp_path):
    """A policy that always solves the same half of the tasks, over 60 iterations."""
    env, curriculum = NumberLine(size=6), Curriculum([Lesson("one", 9)])
    tasks = env.tasks("train")
    solved = {task.id for task in tasks[: len(tasks) // 2]}
    args = config(tmp_path, episodes=64, task_priority=priority)
    means, plain = [], []
    for iteration in range(60):
        drawn = [each.task for each in fresh_episodes(curriculum, env, args, iteration, 0)]
        played = [replace(episode([1.0] * 3, success=task.id in solved), task=task) for task in drawn]
        curriculum.weigh(played, env, priority)
        curriculum.note(played)
        means.append(outcome_means(played, curriculum.weights))
        plain.append(outcome_means(played)["success"])
    assert fmean(each["success"] for each in means) == pytest.approx(len(solved) / len(tasks), abs=0.02)
    assert [each["length"] for each in means] == pytest.approx([3.0] * 60)  # exact if all episodes are alike
    assert (curriculum.weights is None) == (priority == 0)
    if priority:
        assert fmean(plain) < 0.4
    else:
        assert [each["success"] for each in means] == plain


def test_failures_belong_to_tasks_of_their_lesson(tmp_path):
    env, lessons = NumberLine(size=6), [Lesson("one", 9), Lesson("two", 9)]
    failing, untouched = Curriculum(lessons), Curriculum(lessons)
    tasks = env.tasks("train")
    failing.note([replace(episode([1.0], success=task is tasks[3]), task=task) for task in tasks] * 5)
    args = config(tmp_path, episodes=20, task_priority=1.0)

    def drawn():
        return [fresh_episodes(curriculum, env, args, 0, 0) for curriculum in (failing, untouched)]

    before, plain = drawn()
    assert before != plain
    for curriculum in (failing, untouched):
        curriculum.end_lesson()
    after, plain = drawn()
    assert after == plain


def test_replayed_episodes_are_drawn_once_each_and_those_of_failing_tasks_first(tmp_path):
    env, curriculum = NumberLine(size=6), Curriculum([Lesson("one", 9)])
    tasks = env.tasks("train")
    won = [replace(episode([1.0], success=True), task=task) for task in tasks]
    curriculum.note(won * 40)
    curriculum.note([replace(won[3], success=False)])

    def drawn(priority, count, seed):
        args = config(tmp_path, replay=Replay(size=9, episodes=count), task_priority=priority)
        return [each.task.id for each in replayed_episodes(won, curriculum, args, random.Random(seed))]

    assert [drawn(1.0, 1, seed) for seed in range(9)] == [[tasks[3].id]] * 9
    assert len({*chain.from_iterable(drawn(0.0, 1, seed) for seed in range(9))}) > 1
    assert sorted(drawn(0.5, 99, 0)) == sorted(task.id for task in tasks)


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
    assert Lesson("one", 1, replay_threshold=threshold).worth_replaying(episode(rewards, success=success)) == worth
