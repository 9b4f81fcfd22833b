"""The table of searches without learning, from a dataset of small folders."""

from __future__ import annotations

from auto_explore import overview, played, walked

from reflectrl.envs.auto_explore import AutoExplore
from reflectrl.seats.others import ExpertPolicy


def test_walkers_and_the_expert_play_the_same_tasks(dataset):
    env = AutoExplore(dataset=str(dataset), output=40)
    walks = {title: [games] for title, games in walked(dataset, env, "test").items()}
    rows = overview({**walks, "expert": [played(env, "test", 0, ExpertPolicy())]})
    # of the two test questions, the walker answers the shelf's in 5 steps and the shop's in 11
    assert rows["breadth first, as many steps"] == ["100", "8.0", "4.0"]
    assert rows["names that stand in the question"][0] == "0"  # the questions name no file
    assert rows["expert"][0] == "100"
