"""``IndexedActions``: an environment in words, played by numbers."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformObservation

from reflectrl import IndexedActions, InvalidInput, NatLangEnv, Observation, Outcome, Task, make_env


class Doors(NatLangEnv):
    """Two doors that are always there, of which the second is locked at first, and things that come and go."""

    name = "doors"
    max_actions = 4

    def __init__(self, horizon: int = 4) -> None:
        super().__init__(horizon)

    def tasks(self, split: str) -> list[Task]:
        return [Task(split)]

    def start(self, task: Task) -> None:  # noqa: ARG002
        self.key = False

    def observe(self) -> Observation:
        actions = ("take the key", "north") if not self.key else ("south", "north")
        return Observation(f"Key: {self.key}.", actions, common=("north", "south"))

    def act(self, action: str) -> Outcome:
        self.key = self.key or action == "take the key"
        return Outcome(1.0 if action == "south" else -0.1, ended=action == "south", success=action == "south")


def masked(info: dict[str, object]) -> list[int]:
    mask = info["action_mask"]
    assert isinstance(mask, np.ndarray)
    assert mask.dtype == np.int8
    return [int(each) for each in mask]


def test_common_actions_have_the_same_numbers_in_every_state() -> None:
    env = IndexedActions(Doors())
    assert env.action_space == Discrete(4)
    text, info = env.reset(seed=0)
    assert (text, masked(info), info["task"]) == ("Key: False.", [1, 0, 1, 0], "train")
    assert env.numbered == ("north", "south", "take the key")
    assert env.action_space.sample(info["action_mask"]) in (0, 2)
    text, reward, ended, _, info = env.step(np.int64(2))
    assert (text, reward, ended, masked(info)) == ("Key: True.", -0.1, False, [1, 1, 0, 0])
    assert env.action_masks().tolist() == [True, True, False, False]
    _, reward, ended, truncated, info = env.step(1)
    assert (reward, ended, truncated, info["success"]) == (1.0, True, False, True)


def test_a_number_that_cannot_be_played_is_a_wasted_step() -> None:
    env = IndexedActions(Doors(horizon=4), illegal_reward=-0.5)
    env.reset(seed=0)
    for number, over in ((1, False), (3, False), (-1, False), (99, True)):
        text, reward, ended, truncated, info = env.step(number)
        assert (text, reward, ended, truncated, info["illegal"]) == ("Key: False.", -0.5, False, over, True)
        assert masked(info) == [1, 0, 1, 0]
    with pytest.raises(InvalidInput, match="call reset"):
        env.step(0)
    env.reset(seed=0)
    assert env.step(1)[3] is False
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]


def test_it_keeps_gymnasium_s_promises() -> None:
    env = IndexedActions(make_env("dangerous_taxi", stage="full"))
    with pytest.warns(UserWarning, match="different from the unwrapped version|render fps|alternative render"):
        check_env(TransformObservation(env, lambda text: np.array([len(text)]), Box(0, 1000, (1,), np.int64)))


def test_a_vector_environment_stacks_the_masks() -> None:
    envs = SyncVectorEnv([partial(lambda size: IndexedActions(make_env("number_line", size=size)), 8)] * 3)
    _, infos = envs.reset(seed=1)
    assert infos["action_mask"].shape == (3, 2)
    for _ in range(20):  # past the ends of episodes
        numbers = np.array([mask.argmax() for mask in infos["action_mask"]])
        _, _, _, _, infos = envs.step(numbers)
    assert infos["action_mask"].shape == (3, 2)


def test_what_has_no_menus_or_takes_numbers_already_is_refused() -> None:
    with pytest.raises(InvalidInput, match="take numbers already"):
        IndexedActions(gymnasium.make("CartPole-v1"))
    with pytest.raises(InvalidInput, match="no menus"):
        IndexedActions(make_env("orders:Orders"))
    with pytest.raises(InvalidInput, match="reset"):
        IndexedActions(Doors()).step(0)
