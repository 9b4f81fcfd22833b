from __future__ import annotations

import random
import re
import sys

import pytest
from alfworld_games import HOUSES, write_game

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.env import Snapshot
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.games import FAMILIES, make_game

EVERY = {"dataset": "alfworld:all", "count": 6, "scenes": HOUSES}
"""A small game of each family."""


@pytest.fixture(scope="module")
def env():
    return AlfWorld(**EVERY)


def begin(env, family):
    task = next(task for task in env.tasks("train") if task.id.startswith(family))
    return env.reset(seed=0, options={"task": task})


@pytest.mark.slow
def test_it_keeps_the_promises_of_an_environment():
    options = {"families": FAMILIES[1:3], "horizon": 4, "noise": True}
    check_env(make_env("alfworld", **EVERY | options), episodes=1)
    assert [each.horizon for each in (AlfWorld(), AlfWorld("alfworld:all"), AlfWorld(horizon=30))] == [15, 50, 30]
    assert [make_env(name).horizon for name in ("alfworld", "alfworld:tomato", "alfworld:all")] == [15, 15, 50]


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_wins_every_family(family, env):
    searched = 0
    for detour in (0, 6):
        rng = random.Random(family)
        begin(env, family)
        total = sum(env.step(rng.choice(env.observation.actions))[1] for _ in range(detour))
        while (action := env.expert()) is not None:
            if "seen yet" in env.reflection():
                place = re.fullmatch(r"(?:go to|open) (.+)", action)[1]
                assert re.search(rf"\b{place}\b", env.reflection().partition("seen yet")[2])
                searched += 1
            _, reward, _, truncated, info = env.step(action)
            total += reward
            assert (env.mistaken(), truncated) == (False, False)
        assert (info["success"], total) == (True, 1.0)
        assert (env.spoiler(), env.reflection()) == (None, "Good. Everything is as it should be.")
    assert searched > 1


def test_the_expert_of_a_household_goes_where_the_thing_is_kept():
    env = AlfWorld(count=8, scenes=[14], households=3)
    task = env.tasks("train")[0]
    for detour in (0, 1):
        env.reset(seed=0, options={"task": task})
        for _ in range(detour):
            env.step(next(a for a in env.observation.actions if a.startswith("go") and a != env.expert()))
            assert env.mistaken()
            assert "seen yet" not in env.reflection()
        while (action := env.expert()) is not None:
            _, _, _, _, info = env.step(action)
        assert (info["success"], env.steps) == (True, pytest.approx(5, abs=1 + detour))
    assert env.benchmark("test", 2).endswith("floor plans of the training games, 3 households")


@pytest.mark.slow
def test_the_largest_house_fits_on_the_menu_and_is_won():
    env = AlfWorld(count=1, scenes=[30], noise=True)
    env.reset(seed=0)
    assert len(env.observation.actions) > 50
    while (action := env.expert()) is not None:
        *_, info = env.step(action)
        assert len(env.observation.actions) <= env.max_actions
    assert info["success"]


def test_a_game_with_too_long_a_menu_is_refused():
    env = AlfWorld(count=1, scenes=[14], menu=10)
    with pytest.raises(InvalidInput, match=r"offers (\d+) commands, but menu=10; give 'alfworld' the option menu=\1"):
        env.reset(seed=0)


def test_the_text_is_the_task_the_room_and_the_path_so_far(env):
    text, info = begin(env, "pick_heat_then_place_in_recep")
    task, room = env.observation.task.split("\n")
    assert task == "Your task is to: heat some plate and put it in fridge."
    assert room.startswith("You are in the middle of a room. Looking quickly around you, you see ")
    assert text == f"{task}\n{room}\nYou have done nothing yet."
    other = AlfWorld(**EVERY, path=2, noise=True)  # of the path only its end, of the commands all
    _, noisy = other.reset(seed=0, options={"task": env.task})
    assert set(noisy["actions"]) - set(info["actions"]) == {"help", "inventory", "look"}
    for _ in range(3):
        command = env.expert()
        env.step(command)
        other.step(command)
    assert env.observation.task == f"{task}\n{room}"
    whole, end = (each.observation.text.split("> ") for each in (env, other))
    assert (len(whole), end) == (4, ["", *whole[2:]])
    assert whole[3].startswith(f"{command}\nYou ")


def test_hints_by_hand(env):
    begin(env, "look_at_obj_in_light")
    assert "box 1" in env.secrets()
    assert {"desk 1", "shelf 1"}.isdisjoint(env.secrets())
    unseen, best = "No box seen yet; places left: ", "The best next action is: "
    assert env.reflection() == f"{unseen}desk 1, shelf 1, sidetable 1."
    assert env.spoiler() == f"{best}go to desk 1. {unseen}desk 1, shelf 1, sidetable 1."
    env.step("go to desk 1")
    env.step("go to shelf 1")
    assert env.reflection() == "Good. box 1 is on shelf 1, which is here."
    assert env.spoiler() == f"{best}take box 1 from shelf 1. box 1 is on shelf 1, which is here."
    assert "box 1" not in env.secrets()


def test_a_snapshot_outlives_another_game_another_environment_and_the_end(env):
    begin(env, "pick_and_place_simple")
    env.step(env.expert())
    env.step(env.observation.actions[1])
    here, seen = env.snapshot(), (env.observation, env.hints())
    other = AlfWorld(**EVERY)
    plain = Snapshot(here.task, here.seed, here.actions)
    while (action := env.expert()) is not None:
        env.step(action)
    end = env.snapshot()
    for each, snapshot in ((env, here), (other, here), (other, plain)):
        each.restore(snapshot)
        assert (each.observation, each.hints()) == seen
    begin(env, "look_at_obj_in_light")
    env.restore(here)
    assert (env.observation, env.hints()) == seen
    for _ in range(2):  # by replay after another game, and at once
        env.restore(end)
        with pytest.raises(InvalidInput, match="after the episode's end"):
            env.step(env.observation.actions[0])


# ---- datasets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"dataset": "alfworld:tomatoes"}, "'alfworld:tomato'"),
        ({"dataset": 7}, "dataset=7"),
        ({"count": 0}, "count=0"),
        ({"reward": "some"}, "reward='some'"),
        ({"ends": "some"}, "ends='some'"),
        ({"families": "pick_heat"}, "families='pick_heat'"),
        ({"families": ["pick_heat_then_place"]}, "'pick_heat_then_place_in_recep'"),
        ({"scenes": [14.5]}, "scenes="),
        ({"dataset": "alfworld:published", "count": 9}, "count=9"),
        ({"dataset": ".", "seed": 1}, "seed=1"),
    ],
    ids=str,
)
def test_bad_options_are_refused_at_once(options, fact):
    with pytest.raises(InvalidInput, match=re.escape(fact)):
        AlfWorld(**options)


def test_a_folder_of_games_is_played(tmp_path):
    folder, empty = tmp_path / "games", tmp_path / "empty"
    empty.mkdir()
    for split in SPLITS:
        for family in FAMILIES[:2]:
            write_game(folder / split / family, make_game(family, 10))
    env = AlfWorld(str(folder), families=[FAMILIES[1]])
    assert (env.horizon, [len(env.tasks(split)) for split in SPLITS]) == (50, [1, 1, 1])
    env.reset(seed=0, options={"task": env.tasks("test")[0]})
    assert env.expert() in env.observation.actions
    for options, fact in (
        ({"scenes": [31]}, "31.*201"),
        ({"scenes": [401]}, "'pick_and_place_simple'.*Tomato.*Microwave.*401"),
        ({"dataset": str(folder), "families": ["pick_two_obj_and_place"]}, "pick_two_obj_and_place"),
        ({"dataset": str(empty)}, str(empty)),
        ({"families": ["look_at_obj_in_light"]}, "pick_and_place_simple"),
    ):
        with pytest.raises(InvalidInput, match=fact):
            AlfWorld(**options).tasks("test")
    with pytest.raises(InvalidInput, match="'elsewhere'"):
        AlfWorld(count=1).reset(options={"task": Task("elsewhere")})


def test_missing_packages_are_one_sentence_with_the_command_that_installs_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "fast_downward", None)
    for name in ("engine", "translation"):
        monkeypatch.delitem(sys.modules, f"reflectrl.envs.alfworld.{name}")
    with pytest.raises(InvalidInput, match=r"fast_downward.*pip install 'reflectrl\[alfworld\]'"):
        AlfWorld()
