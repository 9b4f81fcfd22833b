from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.env import Snapshot
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.engine import Engine
from reflectrl.envs.alfworld.games import DIALECTS, FAMILIES, make_game, write_game

KITCHENS = (14, 29)
HOUSES = (*KITCHENS, 304, 316, 419)
"""Small floor plans, which the engine translates fast."""


@pytest.fixture(scope="module")
def env():
    return AlfWorld("alfworld:all", count=6, scenes=HOUSES)


def begin(env, family):
    task = next(task for task in env.tasks("train") if task.id.startswith(family))
    return env.reset(seed=0, options={"task": task})


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of games, two a split."""
    root = tmp_path_factory.mktemp("games")
    for number, split in enumerate(SPLITS):
        for family in FAMILIES[:2]:
            game = make_game(family, 10 + number)
            write_game(root / split / game.name, game)
    return root


# ---- contract --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"count": 2, "scenes": KITCHENS, "horizon": 6},
        {
            "dataset": "alfworld:all",
            "count": 6,
            "scenes": HOUSES,
            "families": FAMILIES[1:3],
            "horizon": 4,
            "noise": True,
        },
    ],
    ids=["tomato", "noise"],
)
def test_it_keeps_the_promises_of_an_environment(options):
    check_env(make_env("alfworld", **options), episodes=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_wins_every_family_and_looks_for_what_is_unseen_where_the_reflection_says(family, env):
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


def test_the_horizon_is_the_papers_for_the_tomato_and_alfworlds_for_all():
    assert [env.horizon for env in (AlfWorld(), AlfWorld("alfworld:all"), AlfWorld(horizon=30))] == [15, 50, 30]
    env = AlfWorld(count=1, scenes=KITCHENS, horizon=2)
    _, info = env.reset(seed=0)
    env.step(info["actions"][0])
    _, reward, terminated, truncated, info = env.step(env.observation.actions[0])
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)


def test_the_largest_house_fits_on_the_menu_and_is_won():
    env = AlfWorld(count=1, scenes=[30], noise=True)
    env.reset(seed=0)
    assert len(env.observation.actions) > 50
    while (action := env.expert()) is not None:
        *_, info = env.step(action)
        assert len(env.observation.actions) <= env.max_actions
    assert info["success"]


# ---- text ------------------------------------------------------------------------------------------------------------


def test_the_text_is_the_task_the_room_and_the_path_so_far(env):
    text, _ = begin(env, "pick_and_place_simple")
    stable = env.observation.task
    task, room = stable.split("\n")
    assert task == f"Your task is to: {env._game.goal}."
    assert room.startswith("You are in the middle of a room. Looking quickly around you, you see ")
    assert text == f"{stable}\nYou have done nothing yet."
    first = env.expert()
    text = env.step(first)[0]
    assert env.observation.task == stable
    command, answer = text.removeprefix(f"{stable}\n").split("\n")
    assert command == f"> {first}"
    assert answer.startswith("You arrive at ")


def test_the_path_can_be_cut_to_its_end(env):
    begin(env, "pick_heat_then_place_in_recep")
    short = AlfWorld("alfworld:all", count=6, scenes=HOUSES, path=2)
    short.reset(seed=0, options={"task": env.task})
    for _ in range(3):
        command = env.expert()
        env.step(command)
        short.step(command)
    whole, end = (one.observation.text.split("> ") for one in (env, short))
    assert (len(whole), end) == (4, ["", *whole[2:]])


def test_noise_keeps_all_of_the_engines_commands_on_the_menu(env):
    _, info = begin(env, "pick_heat_then_place_in_recep")
    noisy = AlfWorld("alfworld:all", count=6, scenes=HOUSES, noise=True)
    _, everything = noisy.reset(seed=0, options={"task": env.task})
    assert {"help", "inventory", "look"} == set(everything["actions"]) - set(info["actions"])


def test_the_older_dialect_says_put(tmp_path):
    game = make_game("pick_and_place_simple", 5)
    old = replace(game, grammar=game.grammar.replace(DIALECTS["move"], DIALECTS["put"]))
    for split in SPLITS:
        write_game(tmp_path / split / "game", replace(old, name=f"{split}/{game.name}"))
    env = AlfWorld(str(tmp_path))
    env.reset(seed=0)
    commands = []
    while (command := env.expert()) is not None:
        commands.append(command)
        env.step(command)
    assert commands[-1].startswith("put ")
    assert " in/on " in commands[-1]


# ---- hints -----------------------------------------------------------------------------------------------------------


def test_hints_by_hand(env):
    begin(env, "look_at_obj_in_light")
    assert "box 1" in env.secrets()
    assert {"desk 1", "shelf 1"}.isdisjoint(env.secrets())
    said = [(env.reflection(), env.spoiler())]
    for command in ("go to desk 1", "go to shelf 1", "go to desk 1"):
        env.step(command)
        said.append((env.reflection(), env.spoiler()))
    unseen = "No box seen yet; places left: "
    best = "The best next action is: "
    assert said[:3] == [
        (f"{unseen}desk 1, shelf 1, sidetable 1.", f"{best}go to desk 1. {unseen}desk 1, shelf 1, sidetable 1."),
        (f"Good. {unseen}shelf 1, sidetable 1.", f"{best}go to shelf 1. {unseen}shelf 1, sidetable 1."),
        (
            "Good. box 1 is on shelf 1, which is here.",
            f"{best}take box 1 from shelf 1. box 1 is on shelf 1, which is here.",
        ),
    ]
    assert said[3][0].startswith("Mistake: desk 1 ")
    assert "box 1" not in env.secrets()


def test_where_a_thing_is_that_nobody_saw_makes_no_difference_to_the_expert():
    """Games that differ in where the thing lies are played alike until it is seen."""
    ways = {}
    env = AlfWorld(count=4, scenes=KITCHENS[:1])
    for task in env.tasks("train"):
        env.reset(seed=0, options={"task": task})
        searched = []
        while "seen yet" in env.reflection():
            searched.append(env.expert())
            env.step(searched[-1])
        ways.setdefault(env.observation.task, []).append(searched)
    for searches in ways.values():
        longest = max(searches, key=len)
        assert all(search == longest[: len(search)] for search in searches)
    assert max(len({len(search) for search in searches}) for searches in ways.values()) > 1


# ---- snapshots -------------------------------------------------------------------------------------------------------


def test_a_snapshot_outlives_another_game_and_another_environment(env):
    begin(env, "pick_and_place_simple")
    env.step(env.expert())
    env.step(env.observation.actions[1])
    here, observation, hints = env.snapshot(), env.observation, env.hints()
    begin(env, "look_at_obj_in_light")
    env.restore(here)
    assert (env.observation, env.hints()) == (observation, hints)
    other = AlfWorld("alfworld:all", count=6, scenes=HOUSES)
    other.restore(here)
    assert (other.observation, other.hints()) == (observation, hints)
    other.restore(Snapshot(here.task, here.seed, here.actions))
    assert (other.observation, other.hints()) == (observation, hints)


def test_a_snapshot_outlives_an_engine_that_forgot_its_states():
    env = AlfWorld(count=1, scenes=KITCHENS)
    env._engine = Engine(states=5)
    env.reset(seed=0)
    env.step(env.expert())
    here, observation, hints = env.snapshot(), env.observation, env.hints()
    for place in ("cabinet 1", "cabinet 2", "cabinet 3"):
        for command in (f"go to {place}", f"open {place}"):
            env.step(command)
    env.restore(here)
    assert not env._engine.knows(here.now.position)
    assert (env.observation, env.hints()) == (observation, hints)


def test_a_restored_end_is_an_end(env):
    begin(env, "pick_and_place_simple")
    while (action := env.expert()) is not None:
        env.step(action)
    here = env.snapshot()
    begin(env, "pick_and_place_simple")
    env.restore(here)
    with pytest.raises(InvalidInput, match="had ended"):
        env.step(env.observation.actions[0])


# ---- datasets --------------------------------------------------------------------------------------------------------


def test_the_games_of_a_split_come_in_turn_and_a_seed_makes_others():
    env = AlfWorld("alfworld:all", count=24, families=[FAMILIES[4], FAMILIES[1]])
    families = [task.id.split("-")[0] for task in env.tasks("train")]
    assert families == [FAMILIES[1], FAMILIES[4]] * 12
    assert len(env.tasks("validation")) == len(env.tasks("test")) == 6
    other = AlfWorld("alfworld:all", count=24, families=[FAMILIES[4], FAMILIES[1]], seed=1)
    assert not {task.id for task in env.tasks("train")} & {task.id for task in other.tasks("train")}


def test_floor_plans_can_be_chosen_for_all_splits_which_share_no_game():
    env = AlfWorld(count=40, scenes=KITCHENS)
    games = {split: [env._catalogue.game(task) for task in env.tasks(split)] for split in SPLITS}
    for split in SPLITS:
        assert {game.scene for game in games[split]} == {"FloorPlan14", "FloorPlan29"}
    together = [game for split in SPLITS for game in games[split]]
    starts = {game.problem.partition("(:init")[2] for game in together}
    assert len(together) == len({game.name for game in together}) == len(starts) == 60


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"dataset": "alfworld:tomatoes"}, "'alfworld:tomato'"),
        ({"dataset": "no/such/folder"}, "'no/such/folder'"),
        ({"dataset": 7}, "dataset=7"),
        ({"count": 0}, "count=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"path": 0}, "path=0"),
        ({"horizon": 0}, "horizon=0"),
        ({"families": "pick_heat"}, "families='pick_heat'"),
        ({"families": []}, "families="),
        ({"families": [["pick_heat"]]}, "families="),
        ({"families": ["pick_heat_then_place"]}, "'pick_heat_then_place_in_recep'"),
        ({"scenes": 14}, "scenes=14"),
        ({"scenes": "14"}, "scenes='14'"),
        ({"scenes": []}, "scenes="),
        ({"scenes": [14.5]}, "scenes="),
        ({"dataset": "alfworld:published", "scenes": [14]}, "scenes=[14]"),
        ({"dataset": "the folder", "scenes": [14]}, "scenes=[14]"),
    ],
    ids=str,
)
def test_bad_options_are_refused_at_once(options, fact, folder):
    options = {name: str(folder) if value == "the folder" else value for name, value in options.items()}
    with pytest.raises(InvalidInput, match=re.escape(fact)):
        AlfWorld(**options)


def test_a_folder_of_games_is_played_as_it_lies(folder):
    env = AlfWorld(str(folder), families=[FAMILIES[1]])
    assert (env.horizon, [len(env.tasks(split)) for split in SPLITS]) == (50, [1, 1, 1])
    env.reset(seed=0, options={"task": env.tasks("test")[0]})
    assert env.expert() in env.observation.actions


def test_games_that_are_not_there_are_refused_when_they_are_asked_for(folder, tmp_path):
    for options, fact in (
        ({"scenes": [31]}, "31"),
        ({"scenes": [301]}, "301"),
        ({"dataset": str(folder), "families": ["pick_two_obj_and_place"]}, "pick_two_obj_and_place"),
        ({"dataset": str(tmp_path)}, str(tmp_path)),
        ({"families": ["look_at_obj_in_light"]}, "pick_and_place_simple"),
    ):
        with pytest.raises(InvalidInput, match=fact):
            AlfWorld(**options).tasks("test")
    with pytest.raises(InvalidInput, match="'elsewhere'"):
        AlfWorld(count=1).reset(options={"task": Task("elsewhere")})


def test_a_game_that_cannot_be_used_leaves_the_environment_usable(tmp_path, monkeypatch, capfd):
    game = make_game("pick_and_place_simple", 6, scene=14)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    write_game(tmp_path / "train" / "a", game)
    moon = game.problem.replace("(:init", "(:init (openable moon)")
    write_game(tmp_path / "train" / "b", replace(game, name="bad", problem=moon))
    env = AlfWorld(str(tmp_path))
    good, bad = env.tasks("train")
    env.reset(options={"task": good})
    with pytest.raises(InvalidInput, match="'moon'"):
        env.reset(options={"task": bad})
    env.reset(options={"task": good})
    assert env.expert() in env.observation.actions
    assert capfd.readouterr() == ("", "")  # nothing is printed, and no file left
    assert list((tmp_path / "cwd").iterdir()) == []


def test_missing_packages_are_one_sentence_with_the_command_that_installs_them(tmp_path):
    """In a process of its own, where the engine's package is hidden behind one that cannot be imported."""
    (tmp_path / "fast_downward.py").write_text("raise ImportError('no library here')\n", encoding="utf-8")
    code = "from reflectrl.core import make_env\nmake_env('alfworld')\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    said = done.stderr.strip().splitlines()[-1]
    assert "no library here" in said
    assert "pip install 'reflectrl[alfworld]'" in said
    assert done.stdout == ""
