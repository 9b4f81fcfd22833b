"""The ALFWorld table: a race that compares what it times, and looks at a process."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from alfworld_engine import FIRST, LATER, NEXT, SAME, STEP, Times, compare, look, race, report, watch_environment

from reflectrl.core import WorkFailed
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.engine import Reply
from reflectrl.envs.alfworld.games import make_game


def test_a_race_times_both_at_the_same_things():
    game = make_game("look_at_obj_in_light", 304, scene=304)
    times = race([game], repeats=1, steps=2)
    for seconds in (times.stock, times.ours):
        assert {what: len(taken) for what, taken in seconds.items()} == {FIRST: 1, LATER: 1, NEXT: 1, SAME: 1, STEP: 2}
    assert times.stock[NEXT] == times.stock[LATER] == times.stock[FIRST], "which the stock stack does each time"


def test_the_first_difference_ends_it():
    class State(dict):
        feedback = "You see nothing."

    game, reply = SimpleNamespace(name="game"), Reply("You see nothing.", ("help", "look"), False)
    state = State(admissible_commands=["help", "look"], won=False)
    compare(game, "look", reply, state)
    for change in ({"text": "You see"}, {"commands": ("look",)}, {"won": True}):
        with pytest.raises(WorkFailed, match="game .*'look'"):
            compare(game, "look", replace(reply, **change), state)


def test_the_table_says_how_many_times_as_fast():
    env = AlfWorld("alfworld:all", count=6)
    times = Times()
    for what in (FIRST, LATER, NEXT, SAME, STEP):
        times.stock[what], times.ours[what] = [0.2, 0.1, 0.3], [0.001, 0.002, 0.004]
    own = watch_environment(env, env.tasks("train")[:1], steps=2)
    text = report(times, own, [look(0), look(100), look(200)], games=3)
    assert "| a step of random play | 200 (150 to 250) | 2 (1.5 to 3) | **100** |" in text
    assert [line.count("|") for line in text.splitlines() if line.startswith("|")] == [5] * 10
