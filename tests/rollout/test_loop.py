from __future__ import annotations

import random

import pytest

from reflectrl.core import EpisodeFailed, Utterance, make_env
from reflectrl.envs.dangerous_taxi import DangerousTaxi
from reflectrl.players import ExpertPolicy, ExpertReflector, RandomPolicy, reflecting
from reflectrl.prompts import PromptFormat
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, rollout

LAYOUT = PromptFormat(history=1, shuffle=True)


class Recording:
    """A reflector that keeps what it was shown and says the draw it was given."""

    def __init__(self):
        self.views = []

    def say(self, views, draws):
        self.views += views
        return [Utterance(f"draw {draw:.6f}") for draw in draws]


def episodes(count: int, stage: str = "pickup") -> list[Episode]:
    tasks = make_env("dangerous_taxi", stage=stage).tasks("train")
    return [Episode(tasks[i % len(tasks)], seed=i) for i in range(count)]


def play(batch: int, count: int = 23, seats=(), policy=None):
    envs = [make_env("dangerous_taxi") for _ in range(batch)]
    return rollout(envs, episodes(count), policy=policy or RandomPolicy(), seats=seats, layout=LAYOUT)


def test_results_do_not_depend_on_how_many_episodes_are_played_side_by_side():
    one, seven, many = (play(batch, seats=reflecting(Recording())) for batch in (1, 7, 64))
    assert one == seven == many


def test_trajectories_come_in_the_order_of_the_episodes():
    assert [trajectory.seed for trajectory in play(5)] == list(range(23))


def test_other_seeds_give_other_actions():
    envs = [make_env("dangerous_taxi")]
    task = envs[0].tasks("train")[0]
    played = rollout(envs, [Episode(task, seed) for seed in range(10)], policy=RandomPolicy(), seats=(), layout=LAYOUT)
    assert len({trajectory.actions for trajectory in played}) > 5


def test_the_expert_solves_every_episode_and_its_reflection_is_recorded():
    played = play(4, seats=reflecting(ExpertReflector()), policy=ExpertPolicy())
    assert all(trajectory.success and trajectory.terminated for trajectory in played)
    assert all(turn.reflection for trajectory in played for turn in trajectory.turns)


def test_a_shuffled_menu_is_recorded_as_shown_and_the_index_points_into_it():
    turns = [turn for trajectory in play(8) for turn in trajectory.turns]
    assert any(turn.menu != turn.observation.actions for turn in turns)
    assert all(turn.menu[turn.decision.choice.index] == turn.decision.action for turn in turns)


def test_players_that_want_no_hints_get_none_and_never_see_the_menu_as_reflectors():
    reflector = Recording()
    play(3, count=3, seats=reflecting(reflector), policy=ExpertPolicy())
    assert reflector.views
    assert all(view.hints is None and not isinstance(view, MenuView) for view in reflector.views)


def test_every_finished_episode_is_announced():
    seen = []
    envs = [make_env("dangerous_taxi") for _ in range(3)]
    played = rollout(envs, episodes(9), policy=RandomPolicy(), seats=(), layout=LAYOUT, on_episode=seen.append)
    assert sorted(seen, key=lambda t: t.seed) == played


def test_every_step_is_announced_as_it_is_played():
    told = []
    env = make_env("dangerous_taxi")
    played = rollout(
        [env],
        episodes(2),
        policy=RandomPolicy(),
        seats=reflecting(Recording()),
        layout=LAYOUT,
        on_turn=lambda turn: told.append((turn, env.last_action, env.steps)),
        on_episode=lambda trajectory: told.append(trajectory.turns),
    )
    expected = []
    for trajectory in played:
        expected += [(turn, turn.decision.action, step) for step, turn in enumerate(trajectory.turns, start=1)]
        expected.append(trajectory.turns)
    assert told == expected


def test_running_out_of_time_is_truncation_not_termination():
    env = make_env("number_line", size=10)
    far = max(env.tasks("train"), key=lambda task: len(task.id))

    class Undecided(RandomPolicy):
        def act(self, views, draws):  # noqa: ARG002 - walks to and fro
            return super().act(views, [random.Random(view.prompt.text).random() for view in views])

    played = rollout([env], [Episode(far, s) for s in range(20)], policy=Undecided(), seats=(), layout=LAYOUT)
    cut = [trajectory for trajectory in played if trajectory.truncated]
    assert all(not trajectory.terminated and not trajectory.success for trajectory in cut)
    assert all(len(trajectory.turns) == env.horizon for trajectory in cut)


def test_a_reflector_without_an_expert_in_the_environment_is_a_sentence(corridor_without_expert):
    with pytest.raises(ValueError, match="without expert"):
        rollout(
            [corridor_without_expert],
            [Episode(corridor_without_expert.tasks("train")[0], 0)],
            policy=RandomPolicy(),
            seats=reflecting(ExpertReflector()),
            layout=LAYOUT,
        )


@pytest.fixture
def corridor_without_expert():
    cls = type(make_env("number_line"))
    return type("Unadvised", (cls,), {"expert": lambda _: None, "reflection": lambda _: None})()


class Breaking(DangerousTaxi):
    """Breaks in every fifth episode."""

    def __init__(self, where):
        super().__init__()
        self.where = where

    def breaks(self, where):
        if where == self.where and self._seed % 5 == 2:
            raise EpisodeFailed("broken")

    def start(self, task):
        self.breaks("start")
        super().start(task)

    def act(self, action):
        self.breaks("act")
        return super().act(action)

    def hints(self):
        self.breaks("hints")
        return super().hints()


@pytest.mark.parametrize("where", ["start", "act", "hints"])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_episode_that_cannot_be_played_on_is_left_out_and_the_others_are_as_ever(where, batch):
    envs, finished = [Breaking(where) for _ in range(batch)], []
    options = {"policy": RandomPolicy(), "seats": reflecting(ExpertReflector()), "layout": LAYOUT}
    played = rollout(envs, episodes(23), **options, on_episode=finished.append)
    whole = rollout([make_env("dangerous_taxi")], episodes(23), **options)
    assert played == [trajectory for trajectory in whole if trajectory.seed % 5 != 2]
    assert sorted(finished, key=lambda trajectory: trajectory.seed) == played


@pytest.mark.parametrize("where", ["start", "act", "hints"])
def test_nothing_comes_back_when_every_episode_breaks(where):
    options = {"policy": RandomPolicy(), "seats": reflecting(ExpertReflector()), "layout": LAYOUT}
    broken = [Episode(episode.task, 2) for episode in episodes(4)]
    assert rollout([Breaking(where) for _ in range(2)], broken, **options) == []
