"""Environments in gymnasium's vector environments, and their copies there."""

from __future__ import annotations

import copy
from functools import partial

import pytest
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from reflectrl.core import NatLangEnv, Observation, Outcome, Task, make_env
from reflectrl.core.errors import EnvFailed

OPTIONS = {
    "gym_cards:blackjack": {"observation": "both"},
    "gymnasium:FrozenLake-v1": {"success_reward": 1.0, "horizon": 4},
}
"""Options of an environment with pictures, and of one around another."""


def played(envs, steps):
    """Return the results of seeded random legal actions."""
    shown = [envs.reset(seed=5)]
    envs.action_space.seed(0)
    for _ in range(steps):
        shown.append(envs.step(envs.action_space.sample(mask=tuple(shown[-1][-1]["actions"]))))
    return shown


def plain(shown):
    """Return texts, rewards and ends as plain values."""
    return [[part if isinstance(part, tuple) else part.tolist() for part in step[:-1]] for step in shown]


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_processes_show_what_one_process_shows_and_a_copy_plays_on(name):
    """Plays several episodes: environments reset automatically after an end."""
    made = [partial(make_env, name, **OPTIONS[name])] * 2
    with_processes, without = AsyncVectorEnv(made, shared_memory=False), SyncVectorEnv(made)
    try:
        shown = played(without, steps=6)
        assert plain(played(with_processes, steps=6)) == plain(shown)
        assert all(step[0] in without.observation_space for step in shown)
        assert any(step[2].any() or step[3].any() for step in shown[1:-1])  # an episode ended, and another began
        env = without.envs[0]
        twin = copy.deepcopy(env)
        assert (twin.observation, twin.steps, twin.hints()) == (env.observation, env.steps, env.hints())
        twin.close()
    finally:
        with_processes.close()
        without.close()


class Speaker(NatLangEnv):
    """Environment that shows the given texts in turn."""

    name = "speaker"

    def __init__(self, *said: str) -> None:
        super().__init__(horizon=3)
        self.said = said

    def tasks(self, split):
        return [Task(split)]

    def start(self, _):
        self.index = 0

    def observe(self):
        return Observation(self.said[self.index], ("go on",))

    def act(self, _):
        self.index += 1
        if self.said[self.index] == "broken":
            raise ZeroDivisionError
        return Outcome(0.0)


def test_texts_of_any_length_and_alphabet_go_between_processes():
    said = "ä€😀" * 1000, "short", "ends\n"
    envs = AsyncVectorEnv([partial(Speaker, *said)], shared_memory=False)
    try:
        assert [step[0] for step in played(envs, steps=2)] == [(text,) for text in said]
    finally:
        envs.close()


def test_shared_memory_is_refused_with_the_cure():
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([partial(Speaker, "hello")])


@pytest.mark.filterwarnings("ignore")  # gymnasium warns of what it then raises
def test_an_error_in_a_process_is_raised_here_as_the_same_error():
    envs = AsyncVectorEnv([partial(Speaker, "hello", "broken")], shared_memory=False)
    try:
        with pytest.raises(EnvFailed, match="ZeroDivisionError"):
            played(envs, steps=1)
    finally:
        envs.close(terminate=True)
