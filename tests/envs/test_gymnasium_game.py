"""Gymnasium's own text environments in our interface."""

from __future__ import annotations

import copy
import pickle
import random

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.utils import seeding

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.envs.gymnasium_game import GymnasiumGame
from reflectrl.rollout.pool import WorkerPool

LAKE = {"success_reward": 1.0, "actions": ["left", "down", "right", "up"], "make": {"is_slippery": False}}
TAXI = {"success_reward": 20, "actions": ["south", "north", "east", "west", "pick up", "drop off"], "horizon": 20}


@pytest.fixture
def make():
    """Make environments, and close them after the test."""
    made = []

    def one(name, **options):
        made.append(make_env(f"gymnasium:{name}", **options))
        return made[-1]

    yield one
    for env in made:
        env.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [("FrozenLake-v1", {"success_reward": 1.0}), ("CliffWalking-v1", {"success_reward": -1, "horizon": 30})],
)
def test_it_passes_our_checks(name, options, make):
    check_env(make(name, **options))


LAKES = {**LAKE, "make": {"is_slippery": False, "map_name": None}}


def maps(env):
    """Return the first texts of the test tasks."""
    return [env.reset(options={"task": task})[0] for task in env.tasks("test")[:4]]


@pytest.mark.slow
def test_a_task_has_one_map_although_the_constructor_draws_it(make):
    env, other = make("FrozenLake-v1", **LAKES), make("FrozenLake-v1", **LAKES)
    assert maps(env) == maps(other) == maps(copy.copy(env))
    assert len(set(maps(env))) == 4
    with WorkerPool(1) as pool:
        assert maps(*pool.make("gymnasium:FrozenLake-v1", LAKES, 1)) == maps(env)
    env.step("down")
    assert pickle.loads(pickle.dumps(env)).observation == env.observation
    assert check_env(env) == []


class Draws(FrozenLakeEnv):
    """Lake whose text shows a number that was drawn in the constructor."""

    def __init__(self, source, **options):
        super().__init__(**options)
        self.number = SOURCES[source]()

    def render(self):
        return f"{self.number}: {super().render()}"


SOURCES = {
    "random": random.random,
    "numpy": lambda: np.random.rand(),  # noqa: NPY002 - that is the point
    "gymnasium": lambda: seeding.np_random()[0].random(),
}


@pytest.fixture
def _draws():
    gymnasium.register("Draws-v0", Draws, max_episode_steps=20)
    yield
    gymnasium.registry.pop("Draws-v0")


@pytest.mark.parametrize("source", ["random", "numpy", "gymnasium"])
@pytest.mark.usefixtures("_draws")
def test_whatever_a_constructor_draws_depends_on_the_task_and_disturbs_no_one(source, make):
    before = random.getstate(), np.random.get_state()[1].tolist(), seeding.np_random  # noqa: NPY002
    env, other = (make("Draws-v0", success_reward=1.0, make={"source": source}) for _ in range(2))
    assert maps(env) == maps(other)
    assert len(set(maps(env))) == 4
    assert (random.getstate(), np.random.get_state()[1].tolist(), seeding.np_random) == before  # noqa: NPY002


def test_episodes_by_hand(make):
    env = make("FrozenLake-v1", **LAKE)
    text, info = env.reset(options={"task": env.tasks("test")[0]})
    assert text == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert info["actions"] == ("left", "down", "right", "up")
    for action in ("down", "down", "right", "down", "right"):
        text, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert text == "  (Right)\nSFFF\nFHFH\nFFFH\nHF[F]G"
    _, reward, terminated, _, info = env.step("right")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.reset(options={"task": env.tasks("train")[0]})
    env.step("right")
    *_, terminated, _, info = env.step("down")  # into a hole
    assert (terminated, info["success"]) == (True, False)


def test_the_menu_follows_the_mask_of_gymnasium(make):
    env, bare = make("Taxi-v4", **TAXI), gymnasium.make("Taxi-v4", render_mode="ansi")
    text, info = env.reset(options={"task": Task("seed-3", {"seed": 3})})
    mask = bare.reset(seed=3)[1]["action_mask"]
    legal = [name for name, allowed in zip(TAXI["actions"], mask, strict=True) if allowed]
    assert info["actions"] == tuple(legal)
    assert len(legal) < 6
    for action in (*legal, *legal):
        assert text.replace("\n", "").isprintable()
        if action in info["actions"]:
            text, *_, info = env.step(action)
    bare.close()


class Cut(gymnasium.Wrapper):
    """Environment that truncates the episode at its second step, with the reward of a success."""

    count = 0

    def step(self, action):
        self.count += 1
        seen, _, terminated, _, info = self.env.step(action)
        return seen, 1.0, terminated, self.count == 2, info


def test_a_truncation_by_gymnasium_s_environment_is_no_success(make):
    env = make("FrozenLake-v1", **LAKE)
    env.reset(options={"task": env.tasks("train")[0]})
    env._game = Cut(env._game)
    assert not env.step("right")[2]
    *_, terminated, truncated, info = env.step("right")
    assert (terminated, truncated, info["success"]) == (True, False, False)


def test_a_subclass_may_describe_the_state():
    class Described(GymnasiumGame):
        def describe(self, observation):
            return f"You stand on field {observation} of 16."

    env = Described("FrozenLake-v1", **LAKE)
    assert env.reset(options={"task": env.tasks("train")[0]})[0] == "You stand on field 0 of 16."
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "fact"),
    [
        ("FrozenLaek-v1", {}, "'FrozenLaek-v1'"),
        ("FrozenLake-v1", {"make": {"size": 3}}, "{'size': 3}"),
        ("FrozenLake-v1", {"actions": ["left", "right"]}, "4.*'left', 'right'"),
        ("FrozenLake-v1", {"make": {"max_episode_steps": 3}}, "set horizon instead"),
        ("CartPole-v1", {}, "human, rgb_array.*'ansi'"),
        ("CliffWalking-v1", {}, "horizon"),
    ],
)
def test_what_cannot_be_read_or_played_is_refused(name, options, fact, make):
    with pytest.raises(InvalidInput, match=fact):
        make(name, success_reward=1.0, **options)
