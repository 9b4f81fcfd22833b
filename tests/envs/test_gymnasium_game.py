"""Gymnasium's own text environments in our interface."""

from __future__ import annotations

import copy
import pickle
import random
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.utils import seeding

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.envs.gymnasium_game import GymnasiumGame, drawn_from
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


def test_one_map_for_all_tasks_is_remarked_on(make):
    said = " ".join(check_env(make("FrozenLake-v1", **LAKE)))
    assert (
        "48 of 48 test tasks that were compared begin like one of 48 training tasks, which have 1 first state;" in said
    )


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
    "elsewhere": lambda: np.random.default_rng().random(),
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


def test_draws_of_two_threads_do_not_overlap():
    before, inside, left = seeding.np_random, threading.Event(), threading.Event()

    def other():
        with drawn_from(1):
            inside.set()
            left.wait()

    thread = threading.Thread(target=other, daemon=True)
    with drawn_from(0), drawn_from(2):  # in one thread, they may be nested
        thread.start()
        assert not inside.wait(0.05)
    left.set()
    thread.join()
    assert seeding.np_random is before


@pytest.mark.usefixtures("_draws")
def test_draws_that_no_seed_reaches_are_found_by_the_checker(make):
    with pytest.raises(InvalidInput, match="differs between two environments with the same options and seed"):
        check_env(make("Draws-v0", success_reward=1.0, make={"source": "elsewhere"}))


def test_an_environment_that_draws_nothing_is_made_once(make):
    env = make("FrozenLake-v1", **LAKE)
    game = env._game
    maps(env)
    assert env._game is game


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


def test_states_that_differ_in_colour_alone_have_different_texts(make):
    env = make("Taxi-v4", **TAXI)
    env.reset(options={"task": Task("seed-3", {"seed": 3})})
    game = env._game.unwrapped
    states = [state for state in range(500) if len(set([*game.decode(state)][2:])) == 2]  # not where the ride ends
    texts = set()
    for game.s in states:
        texts.add(env.describe(game.s))
    assert len(texts) == len(states) == 400


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


def test_gymnasium_makes_it_too():
    env = gymnasium.make("reflectrl/Gymnasium-v0", game="FrozenLake-v1", **LAKE)
    assert env.reset(seed=0)[0].startswith("[S]")
    env.close()


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
        ("FrozenLake-v1", {"seeds": 3}, "seeds=3"),
        ("FrozenLake-v1", {"make": {"max_episode_steps": 3}}, "set horizon instead"),
        ("CartPole-v1", {}, "human, rgb_array.*'ansi'"),
        ("Pendulum-v1", {}, r"Box\("),
        ("CliffWalking-v1", {}, "horizon"),
    ],
)
def test_what_cannot_be_read_or_played_is_refused(name, options, fact, make):
    with pytest.raises(InvalidInput, match=fact):
        make(name, success_reward=1.0, **options)
