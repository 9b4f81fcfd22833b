"""Copies of environments in the middle of an episode, of spaces, tasks and errors, by ``copy`` and ``pickle``."""

from __future__ import annotations

import copy
import inspect
import pickle

import gymnasium
import pytest
from corridor import Corridor

from reflectrl.core import InvalidInput, NatLangEnv, Task
from reflectrl.core.errors import EnvFailed
from reflectrl.core.extras import TextSpace
from reflectrl.rollout.pool import WorkerPool

WAYS = pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])


@WAYS
def test_a_copied_environment_goes_its_own_way(copied):
    env = Corridor(horizon=4)
    env.reset(seed=3, options={"task": Task("train-0", {"room": 0})})
    env.action_space.seed(1)
    env.step("right")
    twin = copied(env)
    assert (twin.observation, twin.task, twin.steps, twin.horizon) == (env.observation, env.task, 1, 4)
    assert [twin.action_space.sample() for _ in range(9)] == [env.action_space.sample() for _ in range(9)]
    assert twin.step("right") == env.step("right")
    twin.step("left")
    assert (twin.steps, env.steps) == (3, 2)
    fresh = copied(Corridor())
    assert fresh.reset(seed=0) == Corridor().reset(seed=0)
    assert copied(fresh).reset() == fresh.reset()


@WAYS
def test_what_gymnasium_made_spaces_tasks_and_errors_are_copied(copied):
    env = gymnasium.make("reflectrl/NumberLine-v0", size=6)
    env.reset(seed=0)
    twin = copied(env)
    assert (twin.spec.id, twin.unwrapped.size) == ("reflectrl/NumberLine-v0", 6)
    space = TextSpace(("left", "right"))
    assert (copied(space), copied(space).offered) == (space, ("left", "right"))
    task = Task("a", {"state": 1, "deep": {"list": [1]}})
    assert copied(task) == task
    error = copied(EnvFailed.at("environment 'x' failed", "raised ValueError: no"))
    assert str(error) == "environment 'x' failed: it raised ValueError: no; fix the environment."
    assert (error.where, error.what) == ("environment 'x' failed", "raised ValueError: no")


def test_an_environment_in_a_worker_process_refuses_to_be_copied():
    with WorkerPool(1) as pool:
        [env] = pool.make("number_line", {}, 1)
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidInput, match="number_line"):
                copied(env)


def test_a_class_without_a_constructor_has_the_bases_options():
    """The options are not those of ``__new__``, which takes anything."""
    assert list(inspect.signature(type("Bare", (NatLangEnv,), {})).parameters) == ["horizon"]
