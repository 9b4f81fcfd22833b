"""Copies by ``copy`` and ``pickle``: of environments in mid-episode, their spaces, tasks and errors."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import pytest
from conftest import Corridor

from reflectrl.core import InvalidInput, Task, make_env
from reflectrl.core.errors import EnvFailed
from reflectrl.core.spaces import TextSpace
from reflectrl.core.workers import WorkerPool

WAYS = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])


class Rooms(Corridor):
    """At the top level of a module, where pickle finds it, and with what cannot be copied inside."""

    def __init__(self, horizon: int = 5) -> None:
        super().__init__(horizon)
        self.handle = lambda: None


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
    for _ in range(2):  # not reset yet, and then in mid-episode
        twin = copied(env)
        env.action_space.seed(1)
        twin.action_space.seed(1)
        assert copied(env).reset() == copied(twin).reset()
        env.reset(seed=0)


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
    space.seed(0)
    twin = copied(space)
    assert twin == space
    assert [twin.sample() for _ in range(5)] == [space.sample() for _ in range(5)] or copied is copy.copy
    task = Task("a", {"state": 1, "deep": {"list": [1]}})
    assert copied(task) == task


@WAYS
def test_errors_keep_what_they_say(copied):
    error = copied(EnvFailed.at("environment 'x' failed", "raised ValueError: no"))
    assert str(error) == "environment 'x' failed: it raised ValueError: no; mend the environment."
    assert (error.where, error.what) == ("environment 'x' failed", "raised ValueError: no")
    assert str(copied(InvalidInput("One sentence."))) == "One sentence."


@WAYS
def test_an_environment_in_a_worker_process_refuses_to_be_copied(copied):
    with WorkerPool(1) as pool:
        [env] = pool.make("number_line", {}, 1)
        with pytest.raises(InvalidInput, match="lives in a worker process"):
            copied(env)


def test_a_class_without_a_constructor_of_its_own_keeps_its_options(corridor):
    """The base's ``__new__`` takes anything, so that it must not be what an environment's options are read from."""
    from reflectrl.core import register_env

    register_env("plain_corridor", Plain)
    assert make_env("plain_corridor", horizon=3).horizon == 3
    with pytest.raises(InvalidInput, match="has no option 'size'"):
        make_env("plain_corridor", size=3)


class Plain(Corridor):
    name = "plain_corridor"
    __init__ = Rooms.__mro__[2].__init__  # type: ignore[misc]
