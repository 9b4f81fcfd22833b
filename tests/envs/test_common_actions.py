"""Environments with ``prompt.menu=first``: their declared common actions are listed first, and all can be played."""

from __future__ import annotations

import pytest

from reflectrl.core import make_env
from reflectrl.core.seeds import derive_seed
from reflectrl.prompts import PromptFormat
from reflectrl.rollout import Episode, rollout
from reflectrl.rollout.turn import policy_views
from reflectrl.seats.others import RandomPolicy
from reflectrl.seats.reflector import ExpertReflector
from reflectrl.seats.table import reflecting

LAYOUT = PromptFormat("Rules.", history=2, shuffle=True, menu="first")
GAMES = [
    # options, and the minimum share of legal actions that are on the list
    pytest.param("dangerous_taxi", {"stage": "full"}, 1.0),
    pytest.param("auto_explore", {"horizon": 5}, 0.0),
    pytest.param("gym_cards:points24", {}, 1.0),
    pytest.param("gymnasium:Taxi-v4", {"success_reward": 1.0, "horizon": 5}, 1.0),
    pytest.param("alfworld", {"count": 4, "horizon": 8, "noise": True}, 0.75, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "options", "share"), GAMES)
def test_an_environment_is_played_with_its_common_actions_listed_first(name, options, share):
    env = make_env(name, **options)
    episodes = [Episode(task, derive_seed(number)) for number, task in enumerate(env.split_tasks("train")[:4])]
    seats = () if name.startswith("gymnasium") else reflecting(ExpertReflector())
    played = rollout([env], episodes, policy=RandomPolicy(), seats=seats, layout=LAYOUT)
    legal = listed = illegal = 0
    for trajectory in played:
        views = policy_views(trajectory, LAYOUT)
        assert len({view.prompt.head for view in views}) == 1
        for view, turn in zip(views, trajectory.turns, strict=True):
            menu, lines = view.menu, view.prompt.text.splitlines()
            assert set(menu.actions) == set(turn.observation.actions)
            assert [lines.count(line) for line in menu.text.splitlines()] == [1] * len(menu.actions)
            assert turn.decision.action == menu.actions[turn.decision.choice.index]
            assert len(menu.all_labels) <= env.max_actions
            legal += len(menu.actions)
            listed += len(set(menu.actions) & set(menu.common))
            illegal += len(set(menu.common) - set(menu.actions))
    assert listed >= share * legal
    assert illegal > 0 or name in ("auto_explore", "dangerous_taxi")
    env.close()
