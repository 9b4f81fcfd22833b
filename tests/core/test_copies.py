"""Copies by ``copy`` and ``pickle``: of environments in mid-episode, their spaces, tasks and errors."""

from __future__ import annotations

import copy
import inspect
import pickle

import gymnasium
import pytest

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Task
from reflectrl.core.errors import EnvFailed
from reflectrl.core.spaces import TextSpace
from reflectrl.workers.pool import WorkerPool

WAYS = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])


class Rooms(NatLangEnv):
    """At the top level of a module, where pickle finds it; it holds what has no copy, and draws numbers."""

    name = "rooms"

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon)
        self.handle = lambda: None

    def tasks(self, split):
        return [Task(f"{split}-{room}", {"room": room}) for room in (0, 1)]

    def start(self, task):
        self.room = task.options["room"]
        self.number = int(self.np_random.integers(10**6))

    def observe(self):
        return Observation(f"Room {self.room}, number {self.number}.", ("right", "left"))

    def act(self, action):
        self.room += 1 if action == "right" else -1
        self.number = int(self.np_random.integers(10**6))
        return Outcome(float(self.room), ended=False)


@WAYS
def test_a_copy_stands_where_the_original_does_and_goes_its_own_way(copied):
    env = Rooms(horizon=4)
    env.reset(seed=3)
    env.step("right")
    twin = copied(env)
    assert (twin.observation, twin.task, twin.steps, twin.horizon) == (env.observation, env.task, 1, 4)
    assert twin.step("right") == env.step("right")
    twin.step("left")
    assert (twin.steps, env.steps) == (3, 2)


@WAYS
def test_a_copy_draws_what_the_original_would(copied):
    env = Rooms()
    env.reset(seed=0)
    env.action_space.seed(1)
    twin = copied(env)
    assert [twin.action_space.sample() for _ in range(9)] == [env.action_space.sample() for _ in range(9)]
    assert twin.reset() == env.reset()


@WAYS
def test_what_gymnasium_made_keeps_its_specification(copied):
    env = gymnasium.make("reflectrl/NumberLine-v0", size=6)
    env.reset(seed=0)
    twin = copied(env)
    assert twin.spec.id == "reflectrl/NumberLine-v0"
    assert twin.unwrapped.size == 6


@WAYS
def test_spaces_and_tasks_are_copied(copied):
    space = TextSpace(("left", "right"))
    twin = copied(space)
    assert twin == space
    assert twin.offered == ("left", "right")
    task = Task("a", {"state": 1, "deep": {"list": [1]}})
    assert copied(task) == task


@WAYS
def test_errors_keep_what_they_say(copied):
    error = copied(EnvFailed.at("environment 'x' failed", "raised ValueError: no"))
    assert str(error) == "environment 'x' failed: it raised ValueError: no; fix the environment."
    assert (error.where, error.what) == ("environment 'x' failed", "raised ValueError: no")
    assert str(copied(InvalidInput("One sentence."))) == "One sentence."


def test_an_environment_in_a_worker_process_refuses_to_be_copied():
    with WorkerPool(1) as pool:
        [env] = pool.make("number_line", {}, 1)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidInput, match="lives in a worker process"):
                copied(env)


def test_a_class_without_a_constructor_of_its_own_still_has_the_options_of_the_base():
    """Not those of ``__new__``, which takes anything."""
    assert list(inspect.signature(type("Bare", (NatLangEnv,), {})).parameters) == ["horizon"]
