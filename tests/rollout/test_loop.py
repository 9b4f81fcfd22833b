from __future__ import annotations

import random

import pytest
from thinkers import Thinks

from reflectrl.core import Utterance, make_env
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.seats.others import ExpertPolicy, RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

LAYOUT = PromptFormat(history=1, shuffle=True)


class Recording:
    """Reflector that records its views and replies with its draw."""

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


def test_results_do_not_depend_on_the_number_of_slots():
    one, seven, many = (play(batch, seats=reflecting(Recording())) for batch in (1, 7, 64))
    assert one == seven == many
    assert [trajectory.seed for trajectory in one] == list(range(23))


def test_other_seeds_give_other_actions():
    task = make_env("dangerous_taxi").tasks("train")[0]
    to_play = [Episode(task, seed) for seed in range(10)]
    played = rollout([make_env("dangerous_taxi")], to_play, policy=RandomPolicy(), seats=(), layout=LAYOUT)
    assert len({trajectory.actions for trajectory in played}) > 5


def test_the_expert_solves_every_episode():
    played = play(4, seats=reflecting(ExpertReflector()), policy=ExpertPolicy())
    assert all(trajectory.success and trajectory.terminated for trajectory in played)
    turns = [turn for trajectory in played for turn in trajectory.turns]
    assert all(turn.reflection for turn in turns)
    assert any(turn.menu != turn.observation.actions for turn in turns)  # the menu is shuffled
    assert all(turn.menu[turn.decision.choice.index] == turn.decision.action for turn in turns)


def test_every_step_and_every_finished_episode_is_announced_as_it_is_played():
    seen, env = [], make_env("dangerous_taxi")
    played = rollout(
        [env],
        episodes(2),
        policy=RandomPolicy(),
        seats=reflecting(Recording()),
        layout=LAYOUT,
        on_turn=lambda turn: seen.append((turn, env.last_action, env.steps)),
        on_episode=lambda trajectory: seen.append(trajectory.turns),
    )
    expected = []
    for trajectory in played:
        expected += [(turn, turn.decision.action, step) for step, turn in enumerate(trajectory.turns, start=1)]
        expected.append(trajectory.turns)
    assert seen == expected


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


def test_a_reflector_without_an_expert_in_the_environment_is_refused():
    silent = {"expert": lambda _: None, "reflection": lambda _: None}
    env = type("Unadvised", (type(make_env("number_line")),), silent)()
    options = {"policy": RandomPolicy(), "seats": reflecting(ExpertReflector()), "layout": LAYOUT}
    with pytest.raises(ValueError, match=r"expert\(\) and reflection\(\) say nothing"):
        rollout([env], [Episode(env.tasks("train")[0], 0)], **options)


# ---- thoughts --------------------------------------------------------------------------------------------------------


def thinking(text, env="gym_cards:number_line", legal=True):
    env = make_env(env)
    to_play = [Episode(task, seed) for seed, task in enumerate(env.tasks("train")[:8])]
    played = rollout([env], to_play, policy=Thinks(text, legal), seats=(), layout=PromptFormat(action_mode="json"))
    return [turn for each in played for turn in each.turns]


def test_the_environment_judges_thoughts():
    for turn in thinking("The target is higher."):
        target, number = (int(word.strip(".")) for word in turn.observation.text.split() if word.strip(".").isdigit())
        plus = turn.decision.action == "+"
        assert turn.rewards == {
            "env": turn.reward,
            "format": 1.0,
            "agreement": float(target > number),
            "consistency": float(plus),
        }


def test_a_thought_that_names_an_action_calls_for_it():
    for turn in thinking("I should ADD ONE.", "number_line"):
        called = {"consistency": float(turn.decision.action == "add one")} if "add one" in turn.menu else {}
        assert turn.rewards == {"env": turn.reward, "format": 1.0, **called}
    silent = [turn for turn in thinking("Add one or subtract one?", "number_line") if len(turn.menu) == 2]
    assert {tuple(turn.rewards) for turn in silent} == {("env", "format")}


def test_an_illegal_text_earns_no_format_reward():
    for turn in thinking("The target is higher.", legal=False):
        assert turn.rewards["format"] == 0.0
        assert set(turn.rewards) == {"env", "format", "agreement"}
