from __future__ import annotations

import pytest
from playing import at_random, share_of_wins

from reflectrl.core import InvalidInput, Task, check_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.number_line import NumberLine


def test_it_passes_our_checks_and_its_expert_wins():
    check_env(NumberLine(4))
    env = NumberLine()
    assert share_of_wins(env, env.tasks("train"), NumberLine.expert) == 1.0
    assert 0.1 < share_of_wins(env, env.tasks("train"), at_random()) < 0.6


def test_the_splits_share_out_all_pairs():
    env = NumberLine(size=6)
    pairs = [(t.options["start"], t.options["target"]) for split in SPLITS for t in env.tasks(split)]
    assert sorted(pairs) == [(start, target) for start in range(6) for target in range(6) if start != target]
    assert [env.tasks(split) for split in SPLITS] == [NumberLine(size=6).tasks(split) for split in SPLITS]


def test_one_episode_by_hand():
    env = NumberLine(size=10)
    assert env.horizon == 10
    text, info = env.reset(options={"task": Task("1-to-2", {"start": 1, "target": 2})})
    assert (text, info["actions"]) == ("Number 1, target 2.", ("add one", "subtract one"))
    assert env.reflection() == "The target is higher."
    text, reward, terminated, _, info = env.step("subtract one")
    assert (text, reward, terminated, info["actions"]) == ("Number 0, target 2.", -0.05, False, ("add one",))
    assert env.reflection() == "Mistake. The target is higher."
    env.step("add one")
    assert env.reflection() == "Good. The target is higher."
    text, reward, terminated, _, info = env.step("add one")
    assert (text, reward, terminated, info["success"]) == ("Number 2, target 2.", 1.0, True, True)
    assert (env.expert(), env.reflection()) == (None, "Good. The target is reached.")


@pytest.mark.parametrize("size", [3, 501, 5.0])
def test_impossible_sizes_and_numbers_are_refused(size):
    with pytest.raises(InvalidInput, match=repr(size)):
        NumberLine(size)
    with pytest.raises(InvalidInput, match="'7-to-8'"):
        NumberLine(size=5).reset(options={"task": Task("7-to-8", {"start": 7, "target": 8})})
