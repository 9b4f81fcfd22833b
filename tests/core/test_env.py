from __future__ import annotations

import random

import pytest
from corridor import corridor

from reflectrl.core import Hints, InvalidInput, NatLangEnv, Observation, Outcome, Task, seed_tasks
from reflectrl.core.extras import TextSpace

AT_0 = Task("train-0", {"room": 0})
AT_1 = Task("train-1", {"room": 1})
AT_2 = Task("test-2", {"room": 2})


def start(env, task=AT_0, seed=0):
    return env.reset(seed=seed, options={"task": task})


def test_a_negative_seed_is_refused():
    with pytest.raises(InvalidInput, match="seed=-1"):
        start(corridor(), seed=-1)


def test_task_and_seed_determine_an_episode_whatever_was_played_before():
    fresh, used = corridor(), corridor()
    text, info = start(used, AT_1, seed=5)
    assert text == used.render()
    assert text.startswith("Room 1, number ")
    assert info == {"actions": ("right", "left"), "task": "train-1", "success": False, "illegal": False}
    text, reward, terminated, truncated, info = used.step("left")
    assert text.startswith("Room 0, number ")
    assert (reward, terminated, truncated, info["actions"]) == (0.0, False, False, ("right",))
    assert (used.last_action, used.steps) == ("left", 1)
    assert start(fresh, seed=7) == start(used, seed=7)
    assert (used.last_action, used.steps, used.snapshot().actions) == (None, 0, ())
    assert fresh.step("right") == used.step("right")
    assert len({used.reset(options={"task": AT_0})[0] for _ in range(5)}) == 5  # without a seed


class Dice(NatLangEnv):
    """Say which side is up: no task is listed, and ``start`` makes the episode from a seed."""

    name = "dice"
    further_splits = ("loaded",)
    sides = ("one", "two", "three", "four", "five", "six")

    def __init__(self):
        super().__init__(horizon=1)

    def start(self, task):
        self.up = random.Random(task.options["seed"]).choice(self.sides)

    def observe(self):
        return Observation(f"The die shows {self.up}.", self.sides)

    def act(self, action):
        return Outcome(float(action == self.up), ended=True, success=action == self.up)


def test_without_a_list_of_tasks_they_are_seeds_of_which_each_belongs_to_one_split():
    env = Dice()
    tasks = {split: env.split_tasks(split) for split in env.splits}
    sizes = {split: len(of_split) for split, of_split in tasks.items()}
    assert sizes == {"train": 10_000, "validation": 200, "test": 200, "loaded": 200}
    every = [task for of_split in tasks.values() for task in of_split]
    assert len({task.options["seed"] for task in every}) == len({task.id for task in every}) == 10_600
    env.reset(seed=0, options={"task": tasks["test"][0]})
    assert env.step(env.up)[1] == 1.0
    few = {split: seed_tasks(split, train=3) for split in ("train", "validation", "test")}
    assert {split: len(of_split) for split, of_split in few.items()} == dict.fromkeys(few, 3)


def test_reset_without_a_task_draws_training_tasks_by_seed():
    env = corridor()
    drawn = [env.reset(seed=seed) for seed in range(20)]
    assert {info["task"] for _, info in drawn} == {"train-0", "train-1"}
    assert drawn == [corridor().reset(seed=seed) for seed in range(20)]
    tasks = {task.id: task for task in env.tasks("train")}
    assert drawn == [start(env, tasks[info["task"]], seed) for seed, (_, info) in enumerate(drawn)]


def test_what_is_no_task_no_horizon_and_no_legal_action_is_refused():
    for options, facts in (({"tusk": AT_0}, "'tusk'.*'task'"), ({"task": "train-0"}, "'train-0'")):
        with pytest.raises(InvalidInput, match=facts):
            corridor().reset(options=options)
    for horizon in (0, 2.5, "10"):
        with pytest.raises(InvalidInput, match=f"horizon={horizon!r}"):
            corridor(horizon)
    env = corridor()
    for unknown in (lambda: env.observation, lambda: env.task, env.action_space.sample):
        with pytest.raises(InvalidInput, match="reset"):  # nothing is shown or sampled before the first one
            unknown()
    start(env)
    before = env.snapshot(), env.observation
    for wrong, facts in (("rigth", "'rigth'.*'right'"), ("left", "'left'")):  # "left" is legal in other states only
        with pytest.raises(InvalidInput, match=facts):
            env.step(wrong)
    assert (env.snapshot(), env.observation) == before


@pytest.mark.parametrize(
    ("horizon", "actions", "last"),
    [
        (2, ["right", "left"], (0.0, False, True, False)),  # out of time
        (3, ["right"] * 3, (1.0, True, False, True)),  # an end on the last step is a termination, not a truncation
    ],
)
def test_the_horizon_truncates_and_nothing_is_played_after_the_end(horizon, actions, last):
    env = corridor(horizon)
    with pytest.raises(InvalidInput, match="reset"):
        env.step("right")
    start(env)
    here = env.snapshot()
    *before, (_, reward, terminated, truncated, info) = [env.step(action) for action in actions]
    assert all(step[2:4] == (False, False) for step in before)
    assert (reward, terminated, truncated, info["success"]) == last
    with pytest.raises(InvalidInput, match="reset"):
        env.step("right")
    env.restore(here)
    assert not env.step("right")[2]


def test_an_ended_episode_needs_no_legal_action():
    env = corridor(observe=lambda self: Observation("Here.", ("right",) if self.room < 3 else ()))
    start(env, AT_2)
    assert env.step("right")[4]["actions"] == ()


def test_hints_default_to_the_experts_action():
    for action, hints in (("right", Hints("right", "Next: right.", "The best next action is: right")), (None, Hints())):
        env = corridor(expert=lambda _, action=action: action)
        start(env)
        assert env.hints() == hints


@pytest.mark.parametrize("seed", [0, None], ids=["seeded", "unseeded"])
def test_restore_reproduces_the_state_and_what_follows_also_in_another_environment(seed):
    env, other = corridor(), corridor()
    start(env, seed=seed)
    env.step("right")
    here, observation = env.snapshot(), env.observation
    after = env.step("left")
    for each in (env, other):
        each.restore(here)
        assert (each.observation, each.last_action) == (observation, "right")
        assert each.step("left") == after


def test_gymnasium_sees_the_task_with_the_state():
    env = corridor(observe=lambda _: Observation("Room 0.", ("right",), task="Find the exit."))
    assert env.reset(seed=0)[0] == env.render() == env.step("right")[0] == "Find the exit.\nRoom 0."


def test_text_spaces_hold_and_draw_texts():
    env = corridor()
    start(env, AT_1)
    drawn = []
    for _ in range(2):
        env.action_space.seed(0)
        drawn.append([env.action_space.sample() for _ in range(20)])
    assert drawn[0] == drawn[1]
    assert set(drawn[0]) == {"left", "right"}
    space = TextSpace(("word",))
    assert space == TextSpace()
    assert ("anything" in space, 3 in space) == (True, False)
    assert {space.sample(mask=("left", "right")) for _ in range(20)} == {"left", "right"}
    assert space.sample(mask=()) == ""  # the menu of an episode that has ended
    for given in ({"mask": "left"}, {"mask": (1,)}, {"probability": (0.5,)}):
        with pytest.raises(InvalidInput):
            space.sample(**given)


def test_splits_are_named_and_those_without_tasks_refused():
    env = corridor(
        tasks=lambda _, split: [] if split == "test" else [Task(f"{split}-0", {"room": 0})], further_splits=("far",)
    )
    assert env.splits == ("train", "validation", "test", "far")
    assert [task.id for task in env.split_tasks("far")] == ["far-0"]
    assert list(env.any_tasks("test")) == []
    for ask, split, facts in (
        (env.any_tasks, "fair", "'fair'.*'far'"),
        (env.split_tasks, "test", "'corridor'.*'test'"),
    ):
        with pytest.raises(InvalidInput, match=facts):
            ask(split)
