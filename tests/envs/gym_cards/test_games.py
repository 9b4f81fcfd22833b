"""The four games by hand: rules, rewards, ends, the expert and the splits."""

from __future__ import annotations

from collections import Counter

import pytest
from gymnasium.envs.toy_text.blackjack import BlackjackEnv

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.gym_cards.env import GAMES

FIRST = {
    "number_line": ((20, 5, 5), "5-to-3"),
    "ez_points": ((7, 1, 2), "4-8"),
    "points24": ((631, 301, 304), "A-2-5-5"),
    "blackjack": ((1140, 520, 537), "5-8-vs-A"),
}
"""Size of each split and its first training task. Published numbers refer to these, so they never change."""


def game(name, task=None, seed=0, **options):
    env = make_env(f"gym_cards:{name}", **options)
    tasks = {task.id: task for split in SPLITS for task in env.tasks(split)}
    env.reset(seed=seed, options={"task": tasks[task or FIRST[name][1]]})
    return env


def played(env, *actions):
    """Rewards, and how the last action left the episode."""
    results = [env.step(action) for action in actions]
    *_, terminated, truncated, info = results[-1]
    end = "success" if info["success"] else "lost" if terminated else "out of time" if truncated else "goes on"
    return [result[1] for result in results], end


@pytest.mark.slow
@pytest.mark.parametrize(("observation", "menu"), [("text", "legal"), ("both", "all")])
@pytest.mark.parametrize("name", GAMES)
def test_it_passes_our_checks(name, observation, menu):
    check_env(make_env("gym_cards", game=name, observation=observation, menu=menu), episodes=2)


@pytest.mark.parametrize("name", GAMES)
def test_the_splits_never_change_and_share_no_deal(name):
    env = make_env("gym_cards", game=name)
    sizes, first = FIRST[name]
    assert tuple(len(env.tasks(split)) for split in SPLITS) == sizes
    assert env.tasks("train")[0].id == first
    deals = [{deal(task.options) for task in env.tasks(split)} for split in SPLITS]
    assert sum(map(len, deals)) == len(set().union(*deals))


def deal(options):
    """What makes two tasks the same problem: values, in any order, and who holds them."""
    if "start" in options:
        return options["start"], options["target"]
    mine = options.get("cards") or options["player"]
    return tuple(sorted(min(card, 10) for card in mine)), min(options.get("dealer", 0), 10)


@pytest.mark.parametrize("name", ["number_line", "ez_points", pytest.param("points24", marks=pytest.mark.slow)])
def test_the_expert_reaches_the_goal_and_makes_no_mistake(name):
    env = make_env("gym_cards", game=name)
    tasks = {deal(task.options): task for split in SPLITS for task in env.tasks(split)}
    for task in [*tasks.values()][:: 5 if name == "points24" else 1]:
        env.reset(seed=1, options={"task": task})
        ended = False
        while not ended:
            *_, terminated, truncated, info = env.step(env.expert())
            ended = terminated or truncated
            assert not env.mistaken()
        assert info["success"], task


# ---- NumberLine ------------------------------------------------------------------------------------------------------


def test_number_line():
    env = game("number_line", "1-to-3")
    assert env.observation.text == "Target number: 3. Current number: 1."
    assert env.reflection() == "The target is higher."
    assert played(env, "+", "+") == ([0.0, 1.0], "success")
    assert (env.expert(), env.reflection()) == (None, "Good. The target is reached.")
    env = game("number_line", "1-to-3")
    assert played(env, "-") == ([-1.0], "goes on")
    assert env.observation.actions == ("+",)
    assert env.reflection() == "Mistake. The target is higher."
    assert played(env, "+", "+", "+") == ([0.0, 0.0, 1.0], "lost")  # the return is 0


def test_a_wall_of_the_number_line_costs_a_step():
    env = game("number_line", "1-to-3", menu="all")
    assert played(env, *"---------") == ([-1.0] * 9, "goes on")
    assert env.step("-")[4]["illegal"]
    assert played(game("number_line", "1-to-3", menu="all"), *"----------")[1] == "out of time"


# ---- EZPoints and Points24 -------------------------------------------------------------------------------------------


def test_ez_points():
    env = game("ez_points", "2-Q", menu="all")
    assert sorted(env.observation.text[len("Cards: ") :].split(". ")[0].split(", ")) == ["2", "Q"]
    assert played(env, "10", "10") == ([0.0, -1.0], "goes on")  # the queen was used
    assert env.observation.text.endswith("Formula: 10")
    assert env.reflection() == "Mistake. 10 + 2 equals 12."
    assert played(env, "+", "2", "=") == ([0.0, 0.0, 10.0], "success")
    assert played(game("ez_points", "2-Q"), "2", "=") == ([0.0, -1.0], "lost")
    assert played(game("ez_points", "2-Q"), "2", "*", "10", "=") == ([0.0, 0.0, 0.0, -1.0], "lost")
    env = game("ez_points", "2-Q", menu="all")
    assert played(env, "3", "3", "2", "+", "10") == ([-1.0, -1.0, 0.0, 0.0, 0.0], "goes on")
    assert played(env, "+", "=") == ([0.0, -1.0], "lost")  # six symbols are all there is room for


def test_points24_needs_each_card_once_and_brackets_where_they_belong():
    floats = game("points24", "3-3-8-8")
    assert played(floats, *"8/(3-8/3)", "=") == ([0.0] * 9 + [10.0], "success")  # with floats it is 23.999...
    joined = game("points24", "A-2-2-4", menu="all")
    assert played(joined, *"12*4/2", "=") == ([0.0] * 6 + [-1.0], "lost")
    assert played(game("points24", "4-5-6-10"), *"4*6", "=")[1] == "lost"  # 24, of two cards
    env = game("points24", "4-5-6-10")
    assert env.observation.actions == ("4", "5", "6", "10", "(", "=")
    assert played(env, "(", "4") == ([0.0, 0.0], "goes on")
    assert env.observation.actions == ("+", "-", "*", "/", ")", "=")


def test_the_menu_of_points_and_an_expert_that_gives_up():
    env = game("points24", "3-3-8-8")
    assert played(env, "3", "+", "3", "+", "8", "+") == ([0.0] * 6, "goes on")
    assert env.observation.actions == ("8", "(", "=")
    assert (env.expert(), env.reflection()) == ("=", "Mistake. Nothing that begins so equals 24.")
    env = game("points24", "3-3-8-8", menu="all")
    assert played(env, ")", "=") == ([0.0, -1.0], "lost")  # a symbol that makes no formula costs nothing by itself
    env = game("points24", "3-3-8-8", menu="all")
    assert played(env, *["1"] * 12, *"8/(3-8/3)")[1] == "goes on"
    assert played(env, "=") == ([-1.0], "lost")


def test_each_rule_of_when_an_episode_ends():
    for ends, expected in (
        ("rules", ([-1.0, 0.0, 0.0, 0.0], "goes on")),
        ("penalty", ([-1.0], "lost")),
        ("unsolvable", ([-1.0], "lost")),
    ):
        actions = ["3", "2", "*", "10"]  # there is no 3, and 20 is not 12
        env = game("ez_points", "2-Q", menu="all", ends=ends)
        assert played(env, *actions[: len(expected[0])]) == expected
    for ends, expected in (("penalty", ([0.0, 0.0, 0.0], "goes on")), ("unsolvable", ([0.0, -1.0], "lost"))):
        env = game("ez_points", "2-Q", ends=ends)
        assert played(env, *["2", "*", "10"][: len(expected[0])]) == expected
    assert played(game("ez_points", "2-Q", ends="unsolvable"), "2", "+", "10", "=")[1] == "success"
    assert played(game("number_line", "1-to-3", ends="penalty"), "-") == ([-1.0], "lost")


# ---- Blackjack -------------------------------------------------------------------------------------------------------


def test_blackjack_is_gymnasiums_own():
    """The same deals, seeds and actions in its engine: the same hands, rewards and ends."""
    engine, env = BlackjackEnv(natural=False, sab=False), make_env("gym_cards:blackjack")
    ends = Counter()
    for seed, task in enumerate(env.tasks("train")[:60]):
        env.reset(seed=seed, options={"task": task})
        rng = type(env.np_random)(type(env.np_random.bit_generator)(seed))
        engine.reset(seed=int(rng.integers(2**31)))
        engine.player, engine.dealer[0] = (
            [min(card, 10) for card in task.options["player"]],
            min(task.options["dealer"], 10),
        )
        terminated = False
        while not terminated:
            action = env.expert()
            _, expected, ended, *_ = engine.step(int(action == "hit"))
            text, reward, terminated, _, info = env.step(action)
            assert (reward, terminated, info["success"]) == (expected, ended, expected == 1)
            shown = text.removeprefix("Your cards: ").split(". ")[0].split(", ")
            assert [{"A": 1, "J": 10, "Q": 10, "K": 10}.get(card) or int(card) for card in shown] == engine.player
        ends[reward] += 1
    assert set(ends) == {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(
    ("task", "best", "standing"),
    [
        ("10-6-vs-6", "stand", "You hold 16, the dealer shows 6."),
        ("K-6-vs-7", "hit", "You hold 16, the dealer shows 7."),
        ("A-7-vs-9", "hit", "You hold 18 with an ace as 11, the dealer shows 9."),
        ("A-7-vs-Q", "hit", "You hold 18 with an ace as 11, the dealer shows 10."),
        ("A-8-vs-A", "stand", "You hold 19 with an ace as 11, the dealer shows an ace."),
        ("2-J-vs-3", "hit", "You hold 12, the dealer shows 3."),
        ("2-J-vs-4", "stand", "You hold 12, the dealer shows 4."),
    ],
)
def test_the_expert_plays_basic_strategy_and_reflects_on_what_lies_open(task, best, standing):
    env = game("blackjack", task)
    assert (env.expert(), env.reflection()) == (best, standing)
    dealt = set()
    for seed in range(20):
        env.reset(seed=seed, options={"task": env.task})
        dealt.add((env.observation, env.hints()))
    assert len(dealt) == 1  # the dealer's other card is hidden


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({}, "'game'"),
        ({"game": "poker"}, "game='poker'.*blackjack"),
        ({"game": "ez_points", "observation": "picture"}, "observation='picture'.*image"),
        ({"game": "ez_points", "menu": "some"}, "menu='some'.*legal"),
        ({"game": "ez_points", "ends": "never"}, "ends='never'.*penalty"),
    ],
)
def test_an_unknown_game_or_option_is_refused(options, fact):
    with pytest.raises(InvalidInput, match=fact):
        make_env("gym_cards", **options)


def test_a_task_of_another_game_is_refused():
    env = make_env("gym_cards:ez_points")
    for task in (make_env("gym_cards:points24").tasks("train")[0], Task("2-Q", {"cards": [2, 11]})):
        with pytest.raises(InvalidInput, match="ez_points"):
            env.reset(options={"task": task})
