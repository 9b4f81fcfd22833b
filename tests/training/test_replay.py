from __future__ import annotations

import random
from collections import Counter

from reflectrl.core import Task, Trajectory
from reflectrl.training.replay import ReplayBuffer


def episodes(*numbers):
    return [Trajectory(Task(str(n)), n, (), terminated=True, truncated=False, success=True) for n in numbers]


def test_the_newest_episodes_are_kept_oldest_first():
    buffer = ReplayBuffer(3)
    buffer.extend(episodes(1, 2))
    buffer.extend(episodes(3, 4))
    assert [episode.seed for episode in buffer] == [2, 3, 4]


def test_a_buffer_of_size_zero_keeps_nothing():
    buffer = ReplayBuffer(0)
    buffer.extend(episodes(1, 2))
    assert list(buffer) == []
    assert buffer.sample(2, random.Random(0)) == []


def test_a_cleared_buffer_keeps_nothing_and_fills_again():
    buffer = ReplayBuffer(2)
    buffer.extend(episodes(1, 2))
    buffer.clear()
    assert list(buffer) == []
    buffer.extend(episodes(3))
    assert [episode.seed for episode in buffer] == [3]


def test_a_sample_holds_different_episodes_and_no_more_than_there_are():
    buffer = ReplayBuffer(10)
    buffer.extend(episodes(1, 2, 3))
    assert len({episode.seed for episode in buffer.sample(2, random.Random(0))}) == 2
    assert {episode.seed for episode in buffer.sample(8, random.Random(0))} == {1, 2, 3}


def test_samples_are_even_and_follow_the_generator():
    buffer = ReplayBuffer(4)
    buffer.extend(episodes(1, 2, 3, 4))
    assert buffer.sample(2, random.Random(5)) == buffer.sample(2, random.Random(5))
    rng = random.Random(0)
    found = Counter(episode.seed for _ in range(1000) for episode in buffer.sample(2, rng))
    assert all(abs(count - 500) < 80 for count in found.values())
