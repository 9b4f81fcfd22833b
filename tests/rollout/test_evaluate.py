from __future__ import annotations

import pytest

from reflectrl.core import EpisodeFailed, InvalidInput, WorkFailed, make_env
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.players import RandomPolicy
from reflectrl.prompts import PromptFormat
from reflectrl.rollout.evaluate import fixed_episodes, play_all


def test_the_list_is_fixed_by_the_seed_and_plays_the_tasks_in_turn():
    env = make_env("dangerous_taxi")
    first = fixed_episodes(env, "test", episodes=130, max_tasks=None, seed=3)
    assert first == fixed_episodes(env, "test", episodes=130, max_tasks=None, seed=3)
    tasks = list(env.tasks("test"))
    assert [episode.task for episode in first[: len(tasks)]] == tasks
    assert first[len(tasks)].task == first[0].task
    assert first[len(tasks)].seed != first[0].seed
    assert fixed_episodes(env, "test", episodes=2, max_tasks=None, seed=4)[0].seed != first[0].seed


def test_greedy_play_takes_each_task_once():
    env = make_env("dangerous_taxi")
    assert len(fixed_episodes(env, "test", episodes=None, max_tasks=7, seed=0)) == 7


def test_unknown_split_names_the_nearest():
    with pytest.raises(InvalidInput, match="'test'"):
        fixed_episodes(make_env("dangerous_taxi"), "tests", episodes=1, max_tasks=None, seed=0)


@pytest.mark.parametrize("batch_size", [7, 64])
def test_the_numbers_do_not_depend_on_the_batch_size(batch_size):
    episodes = fixed_episodes(make_env("dangerous_taxi"), "test", episodes=70, max_tasks=None, seed=0)

    def run(size):
        return play_all(
            [make_env("dangerous_taxi") for _ in range(size)],
            episodes,
            policy=RandomPolicy(),
            seats=(),
            layout=PromptFormat(),
        )

    assert run(batch_size) == run(1)


def test_an_evaluation_with_dropped_episodes_is_refused_and_names_their_tasks():
    episodes = fixed_episodes(make_env("dangerous_taxi"), "test", episodes=5, max_tasks=3, seed=0)
    lost = episodes[1].task.id

    class Breaking(DangerousTaxi):
        def start(self, task):
            if task.id == lost:
                raise EpisodeFailed("broken")
            super().start(task)

    with pytest.raises(WorkFailed, match=lost):
        play_all([Breaking()], episodes, policy=RandomPolicy(), seats=(), layout=PromptFormat())
