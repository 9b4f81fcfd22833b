from __future__ import annotations

import random
from collections import Counter

from reflectrl.core import Task, Trajectory
from reflectrl.training.replay import ReplayBuffer


def kept(size, *numbers):
    buffer = ReplayBuffer(size)
    buffer.extend(Trajectory(Task(str(n)), n, (), terminated=True, truncated=False, success=True) for n in numbers)
    return buffer


def test_the_newest_episodes_are_kept_oldest_first():
    assert [episode.seed for episode in kept(3, 1, 2, 3, 4)] == [2, 3, 4]
    nothing = kept(0, 1, 2)
    assert nothing.sample(2, random.Random(0)) == list(nothing) == []


def test_samples_are_even_hold_different_episodes_and_follow_the_generator():
    buffer = kept(4, 1, 2, 3, 4)
    assert {episode.seed for episode in buffer.sample(8, random.Random(0))} == {1, 2, 3, 4}
    assert buffer.sample(2, random.Random(5)) == buffer.sample(2, random.Random(5))
    rng = random.Random(0)
    pairs = [[episode.seed for episode in buffer.sample(2, rng)] for _ in range(1000)]
    assert all(one != other for one, other in pairs)
    assert all(abs(count - 500) < 80 for count in Counter(sum(pairs, [])).values())
