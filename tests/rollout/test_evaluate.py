from __future__ import annotations

import pytest

from reflectrl.core import EpisodeFailed, InvalidInput, WorkFailed, make_env
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.prompts import PromptFormat
from reflectrl.rollout.loop import fixed_episodes, play_all
from reflectrl.seats.others import RandomPolicy


def fixed(split="test", episodes=None, max_tasks=None, seed=0):
    return fixed_episodes(make_env("dangerous_taxi"), split, episodes=episodes, max_tasks=max_tasks, seed=seed)


def test_the_list_of_episodes_is_fixed_by_the_seed():
    tasks, first = list(make_env("dangerous_taxi").tasks("test")), fixed(episodes=130, seed=3)
    assert first == fixed(episodes=130, seed=3)
    assert [episode.task for episode in first[: len(tasks)]] == tasks
    assert first[len(tasks)].task == first[0].task
    assert first[len(tasks)].seed != first[0].seed
    assert fixed(episodes=2, seed=4)[0].seed != first[0].seed
    assert len(fixed(max_tasks=7)) == 7  # without a number, each task once
    with pytest.raises(InvalidInput, match="'test'"):
        fixed("tests")
    with pytest.raises(InvalidInput, match="0 episodes of 45 tasks"):
        fixed(episodes=0)
    with pytest.raises(InvalidInput, match="0 episodes of 0 tasks"):
        fixed(max_tasks=0)


def test_the_numbers_do_not_depend_on_the_batch_size():
    episodes = fixed(episodes=20)

    def run(size):
        envs = [make_env("dangerous_taxi") for _ in range(size)]
        return play_all(envs, episodes, policy=RandomPolicy(), seats=(), layout=PromptFormat())

    assert run(7) == run(64) == run(1)


def test_an_evaluation_with_dropped_episodes_is_refused_and_names_their_tasks():
    episodes = fixed(episodes=5, max_tasks=3)
    lost = episodes[1].task.id

    class Breaking(DangerousTaxi):
        def start(self, task):
            if task.id == lost:
                raise EpisodeFailed("broken")
            super().start(task)

    with pytest.raises(WorkFailed, match=lost):
        play_all([Breaking()], episodes, policy=RandomPolicy(), seats=(), layout=PromptFormat())
