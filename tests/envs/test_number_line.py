from __future__ import annotations

import random

import pytest

from reflectrl.core import InvalidInput, Task, check_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.number_line import NumberLine


def play(env, choose):
    """Every task of every split once; the share that succeeds."""
    wins = []
    for split in SPLITS:
        for task in env.tasks(split):
            env.reset(seed=0, options={"task": task})
            ended = False
            while not ended:
                _, _, terminated, truncated, info = env.step(choose(env))
                ended = terminated or truncated
            wins.append(info["success"])
    return sum(wins) / len(wins)


@pytest.mark.parametrize("size", [4, 10])
def test_it_passes_our_checks(size):
    check_env(NumberLine(size))


def test_the_splits_share_out_all_pairs():
    env = NumberLine(size=6)
    pairs = [(t.options["start"], t.options["target"]) for split in SPLITS for t in env.tasks(split)]
    assert sorted(pairs) == [(start, target) for start in range(6) for target in range(6) if start != target]
    assert [env.tasks(split) for split in SPLITS] == [NumberLine(size=6).tasks(split) for split in SPLITS]


def test_the_expert_solves_every_task():
    assert play(NumberLine(), NumberLine.expert) == 1.0


def test_chance_leaves_room_to_learn():
    rng = random.Random(0)
    assert 0.1 < play(NumberLine(), lambda env: rng.choice(env.observation.actions)) < 0.6


def test_one_episode_by_hand():
    env = NumberLine(size=10)
    task = next(t for split in SPLITS for t in env.tasks(split) if t.id == "1-to-2")
    text, info = env.reset(options={"task": task})
    assert (text, info["actions"]) == ("Number 1, target 2.", ("add one", "subtract one"))
    assert env.hints().reflection == "The target is higher."
    text, reward, terminated, _, info = env.step("subtract one")
    assert (text, reward, terminated, info["actions"]) == ("Number 0, target 2.", -0.05, False, ("add one",))
    assert env.hints().reflection == "Mistake. The target is higher."
    env.step("add one")
    assert env.hints().reflection == "Good. The target is higher."
    text, reward, terminated, _, info = env.step("add one")
    assert (text, reward, terminated, info["success"]) == ("Number 2, target 2.", 1.0, True, True)
    assert (env.expert(), env.reflection()) == (None, "Good. The target is reached.")


def test_the_horizon_is_the_size():
    env = NumberLine(size=4)
    task = next(t for split in SPLITS for t in env.tasks(split) if t.id == "0-to-3")
    env.reset(options={"task": task})
    ends = [env.step(action)[2:4] for action in ("add one", "subtract one", "add one", "subtract one")]
    assert ends == [(False, False)] * 3 + [(False, True)]


@pytest.mark.parametrize("size", [3, 0, 5.0, "10"])
def test_a_size_that_makes_no_line_is_refused(size):
    with pytest.raises(InvalidInput, match=repr(size)):
        NumberLine(size)
    with pytest.raises(InvalidInput, match="'7-to-8'"):
        NumberLine(size=5).reset(options={"task": Task("7-to-8", {"start": 7, "target": 8})})
