"""gymnasium's own text environments, as environments of ours."""

from __future__ import annotations

import random
import re

import gymnasium
import pytest

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.envs.gymnasium_game import GymnasiumGame

LAKE = {"success_reward": 1.0, "actions": ["left", "down", "right", "up"], "make": {"is_slippery": False}}
TAXI = {"success_reward": 20, "actions": ["south", "north", "east", "west", "pick up", "drop off"], "horizon": 20}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gymnasium:FrozenLake-v1", LAKE),
        ("gymnasium:FrozenLake-v1", {"success_reward": 1.0}),
        ("gymnasium:Taxi-v4", TAXI),
        ("gymnasium:CliffWalking-v1", {"success_reward": -1, "horizon": 30}),
    ],
)
def test_it_passes_our_checks(name, options):
    env = make_env(name, **options)
    check_env(env)
    env.close()


def test_one_episode_by_hand():
    env = make_env("gymnasium:FrozenLake-v1", **LAKE)
    text, info = env.reset(options={"task": env.tasks("test")[0]})
    assert text == "[S]FFF\nFHFH\nFFFH\nHFFG"
    assert info["actions"] == ("left", "down", "right", "up")
    for action in ("down", "down", "right", "down", "right"):
        text, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
    assert text == "  (Right)\nSFFF\nFHFH\nFFFH\nHF[F]G"
    text, reward, terminated, _, info = env.step("right")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_an_end_without_the_reward_is_no_success():
    env = make_env("gymnasium:FrozenLake-v1", **LAKE)
    env.reset(options={"task": env.tasks("train")[0]})
    env.step("right")
    *_, terminated, _, info = env.step("down")  # into a hole
    assert (terminated, info["success"]) == (True, False)
    env.close()


def test_no_control_character_reaches_a_player():
    env = make_env("gymnasium:Taxi-v4", **TAXI)
    rng = random.Random(0)
    for task in env.tasks("train")[:5]:
        text, info = env.reset(options={"task": task})
        for _ in range(10):
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
            text, *_, info = env.step(rng.choice(info["actions"]))
    env.close()


def test_the_menu_holds_what_the_mask_of_gymnasium_allows():
    env, bare = make_env("gymnasium:Taxi-v4", **TAXI), gymnasium.make("Taxi-v4", render_mode="ansi")
    _, info = env.reset(options={"task": Task("seed-3", {"seed": 3})})
    _, told = bare.reset(seed=3)
    legal = [name for name, allowed in zip(TAXI["actions"], told["action_mask"], strict=True) if allowed]
    assert info["actions"] == tuple(legal)
    assert len(legal) < 6
    env.close()
    bare.close()


def test_the_base_ends_an_episode_that_gymnasium_would_have_let_go_on():
    env = make_env("gymnasium:FrozenLake-v1", **LAKE, horizon=3)
    env.reset(options={"task": env.tasks("train")[0]})
    ends = [env.step("left")[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.close()


def test_a_subclass_may_describe_the_state_and_be_its_expert():
    class Told(GymnasiumGame):
        def describe(self, observation):
            return f"You stand on field {observation} of 16."

    env = Told("FrozenLake-v1", **LAKE)
    assert env.reset(options={"task": env.tasks("train")[0]})[0] == "You stand on field 0 of 16."
    env.close()


@pytest.mark.parametrize(
    ("id", "options", "said"),
    [
        ("FrozenLaek-v1", {}, "gymnasium cannot make 'FrozenLaek-v1'.*[Dd]id you mean"),
        ("FrozenLake-v1", {"make": {"size": 3}}, "gymnasium cannot make 'FrozenLake-v1' with {'size': 3}"),
        ("FrozenLake-v1", {"actions": ["left", "right"]}, "has 4 actions; expected as many different names"),
        ("FrozenLake-v1", {"seeds": 3}, "expected 4 or more"),
        ("CartPole-v1", {}, "renders in the modes human, rgb_array; expected 'ansi'"),
        ("Pendulum-v1", {}, "expected discrete ones"),
        ("CliffWalking-v1", {}, "give a horizon"),
    ],
)
def test_what_cannot_be_read_or_played_is_refused(id, options, said):
    with pytest.raises(InvalidInput, match=said):
        make_env(f"gymnasium:{id}", success_reward=1.0, **options)
