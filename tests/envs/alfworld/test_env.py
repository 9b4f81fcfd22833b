from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from reflectrl.core import InvalidInput, Task, check_env, env_names, make_env
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of games, two a split."""
    root = tmp_path_factory.mktemp("games")
    for number, split in enumerate(SPLITS):
        for family in FAMILIES[:2]:
            game = make_game(family, 10 + number)
            write_game(root / split / game.name, game)
    return root


# ---- contract --------------------------------------------------------------------------------------------------------


def test_it_is_known_by_its_name():
    assert "alfworld" in env_names()
    assert isinstance(make_env("alfworld", count=1), AlfWorld)


def test_it_keeps_the_promises_of_an_environment():
    check_env(AlfWorld("alfworld:tomato", count=2, scenes=KITCHENS, horizon=6), episodes=1)


def test_it_keeps_them_with_noise_and_all_families():
    check_env(
        AlfWorld("alfworld:all", count=6, scenes=HOUSES, families=FAMILIES[1:3], horizon=4, noise=True), episodes=1
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_wins_every_family_from_the_start_and_after_random_steps(family, env):
    for detour in (0, 6):
        rng = random.Random(family)
        _, info = begin(env, family)
        total = 0.0
        for _ in range(detour):
            total += env.step(rng.choice(info["actions"]))[1]
            info = {"actions": env.observation.actions}
        terminated = False
        while not terminated:
            text, reward, terminated, truncated, info = env.step(env.expert())
            total += reward
            assert not truncated
        assert info["success"]
        assert total == 1.0
        assert env.expert() is None
        assert env.spoiler() is None
        assert env.reflection() == "Good. Everything is as it should be."


def test_the_largest_house_fits_on_the_menu_and_is_won():
    env = AlfWorld(count=1, scenes=[30], noise=True)
    env.reset(seed=0)
    assert len(env.observation.actions) > 50
    while (action := env.expert()) is not None:
        *_, info = env.step(action)
        assert len(env.observation.actions) <= env.max_actions
    assert info["success"]


def test_the_horizon_is_the_papers_for_the_tomato_and_alfworlds_for_all():
    assert AlfWorld().horizon == 15
    assert AlfWorld("alfworld:all").horizon == 50
    assert AlfWorld("alfworld:all", horizon=30).horizon == 30


def test_wandering_ends_at_the_horizon_without_success():
    env = AlfWorld(count=1, scenes=KITCHENS, horizon=2)
    _, info = env.reset(seed=0)
    env.step(info["actions"][0])
    _, reward, terminated, truncated, info = env.step(env.observation.actions[0])
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)


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


@pytest.mark.parametrize(("path", "steps"), [(None, 3), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_path_can_be_cut_to_its_end(path, steps):
    env = AlfWorld(count=1, scenes=KITCHENS, path=path)
    env.reset(seed=0)
    played = []
    for _ in range(3):
        played.append(env.expert())
        env.step(env.expert())
    shown = [line.removeprefix("> ") for line in env.observation.text.split("\n") if line.startswith("> ")]
    assert shown == played[3 - steps :]


def test_noise_keeps_all_of_the_engines_commands_on_the_menu(env):
    _, info = begin(env, "pick_heat_then_place_in_recep")
    task = env.task
    noisy = AlfWorld("alfworld:all", count=6, scenes=HOUSES, noise=True)
    _, all_of_them = noisy.reset(seed=0, options={"task": task})
    assert all_of_them["actions"] == noisy._engine.snapshot().reply.commands
    assert {"help", "inventory", "look"} == set(all_of_them["actions"]) - set(info["actions"])


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


def test_a_reflection_judges_the_last_command_says_why_and_where_things_stand(env):
    begin(env, "pick_heat_then_place_in_recep")
    assert not env.reflection().startswith(("Good", "Mistake"))
    best = env.expert()
    env.step(best)
    assert env.reflection().startswith("Good. ")
    env.step("go to toaster 1")
    assert env.reflection().startswith("Mistake: toaster 1 is of no use now. ")


def test_the_spoiler_names_the_best_command_and_where_things_stand(env):
    begin(env, "look_at_obj_in_light")
    said = [env.spoiler()]
    for command in ("go to desk 1", "go to shelf 1"):
        assert env.expert() == command
        env.step(command)
        said.append(env.spoiler())
    assert said == [
        "The best next action is: go to desk 1. No box seen yet; places left: desk 1, shelf 1, sidetable 1.",
        "The best next action is: go to shelf 1. No box seen yet; places left: shelf 1, sidetable 1.",
        "The best next action is: take box 1 from shelf 1. box 1 is on shelf 1, which is here.",
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_while_a_thing_is_unseen_the_expert_looks_where_the_reflection_says(family, env):
    searched = 0
    for detour in (0, 3, 6):
        rng = random.Random(family)
        begin(env, family)
        for _ in range(detour):
            env.step(rng.choice(env.observation.actions))
        while (action := env.expert()) is not None:
            if "seen yet" in env.reflection():
                place = re.fullmatch(r"(?:go to|open) (.+)", action)[1]
                assert re.search(rf"\b{place}\b", env.reflection().partition("seen yet")[2])
                searched += 1
            env.step(action)
            assert env.mistaken() is False
    assert searched > 1


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


def test_the_names_of_things_are_secret_until_a_text_has_told_them(env):
    begin(env, "look_at_obj_in_light")
    assert "box 1" in env.secrets()
    assert not {"desk 1", "shelf 1"} & set(env.secrets())
    for _ in range(2):
        env.step(env.expert())
    assert "box 1" not in env.secrets()
    assert "box 1" in env.observation.text


# ---- snapshots -------------------------------------------------------------------------------------------------------


def test_a_negative_example_can_be_made_and_unmade(env):
    begin(env, "pick_and_place_simple")
    env.step(env.expert())
    here, observation, hints = env.snapshot(), env.observation, env.hints()
    env.step(env.observation.actions[0])
    env.restore(here)
    assert (env.observation, env.hints(), env.steps) == (observation, hints, 1)
    while (action := env.expert()) is not None:
        *_, info = env.step(action)
    assert info["success"]


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


def test_results_say_when_all_splits_have_the_same_floor_plans():
    for split in SPLITS:
        assert AlfWorld(scenes=KITCHENS).benchmark(split, 3) == (
            "ALFWorld engine, self-generated games, floor plans of the training games"
        )
        assert AlfWorld().benchmark(split, 3) == "ALFWorld engine, self-generated games"


@pytest.mark.parametrize(
    ("scenes", "sentence"),
    [
        ([31], r"floor plan 31 does not exist; expected 1 to 30 \(Kitchen\)"),
        ([301], "with object Tomato and receptacle Microwave cannot be made in floor plan 301"),
    ],
)
def test_floor_plans_without_such_games_are_refused_when_games_are_made(scenes, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        AlfWorld(scenes=scenes).tasks("test")


@pytest.mark.parametrize("dataset", ["alfworld:published", "a folder"])
def test_floor_plans_cannot_be_chosen_for_games_that_have_theirs(dataset, folder):
    games = str(folder) if dataset == "a folder" else dataset
    with pytest.raises(InvalidInput, match=rf"scenes=\[14\] was given for the games of '{games}', which have their"):
        AlfWorld(games, scenes=[14])


def test_a_folder_of_games_is_played_as_it_lies(folder):
    env = AlfWorld(str(folder), families=[FAMILIES[1]])
    assert env.horizon == 50
    assert [len(env.tasks(split)) for split in SPLITS] == [1, 1, 1]
    env.reset(seed=0, options={"task": env.tasks("test")[0]})
    assert env.observation.task.startswith("Your task is to: ")
    assert env.expert() in env.observation.actions


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"dataset": "alfworld:tomatoes"}, "did you mean 'alfworld:tomato'?"),
        ({"dataset": "no/such/folder"}, "is no folder; expected one with games, or alfworld:tomato"),
        ({"dataset": 7}, "dataset=7 was given"),
        ({"count": 0}, "count=0 was given to 'alfworld'; expected 1 or more"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": None}, "seed=None"),
        ({"path": 0}, "path=0 was given to 'alfworld'; expected 1 or more"),
        ({"horizon": 0}, "horizon=0"),
        ({"families": "pick_heat"}, "families='pick_heat' was given to 'alfworld'; expected a list of names"),
        ({"families": []}, "expected a list of names"),
        ({"families": [["pick_heat"]]}, "expected a list of names"),
        ({"scenes": 14}, "scenes=14 was given to 'alfworld'; expected a list of numbers of floor plans"),
        ({"scenes": "14"}, "expected a list of numbers"),
        ({"scenes": []}, "expected a list of numbers"),
        ({"scenes": [14.5]}, "expected a list of numbers"),
        (
            {"families": ["pick_heat_then_place"]},
            "family 'pick_heat_then_place' is unknown; did you mean 'pick_heat_then",
        ),
    ],
)
def test_bad_options_are_refused_at_once(options, sentence):
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        AlfWorld(**options)


def test_a_dataset_without_the_games_asked_for_says_so(folder, tmp_path):
    with pytest.raises(InvalidInput, match="has no train games of pick_two_obj_and_place"):
        AlfWorld(str(folder), families=["pick_two_obj_and_place"]).tasks("train")
    with pytest.raises(InvalidInput, match="has no test games"):
        AlfWorld(str(tmp_path)).tasks("test")
    with pytest.raises(InvalidInput, match="has games of 'pick_and_place_simple' only"):
        AlfWorld(families=["look_at_obj_in_light"]).tasks("train")


def test_a_task_of_another_dataset_is_refused():
    with pytest.raises(InvalidInput, match="task 'elsewhere' is not in dataset 'alfworld:tomato'"):
        AlfWorld(count=1).reset(options={"task": Task("elsewhere")})


def test_a_game_that_cannot_be_used_leaves_the_environment_usable(tmp_path):
    game = make_game("pick_and_place_simple", 6)
    write_game(tmp_path / "train" / "a", game)
    moon = game.problem.replace("(:init", "(:init (openable moon)")
    write_game(tmp_path / "train" / "b", replace(game, name="bad", problem=moon))
    env = AlfWorld(str(tmp_path))
    good, bad = env.tasks("train")
    env.reset(options={"task": good})
    with pytest.raises(InvalidInput, match="speaks of 'moon'"):
        env.reset(options={"task": bad})
    env.reset(options={"task": good})
    assert env.expert() in env.observation.actions


def test_missing_packages_are_one_sentence_with_the_command_that_mends_it(tmp_path):
    """In a process of its own, where the engine's package is hidden behind one that cannot be imported."""
    (tmp_path / "fast_downward.py").write_text("raise ImportError('no library here')\n", encoding="utf-8")
    code = "from reflectrl.core import make_env\nmake_env('alfworld')\n"
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.strip().splitlines()[-1]
    assert "environment 'alfworld' needs packages that are not installed (no library here); run pip install" in said
    assert "reflectrl[alfworld]" in said
    assert done.stdout == ""


def test_a_game_says_nothing_on_the_console_and_leaves_no_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = AlfWorld(count=1, seed=5)
    env.reset(seed=0)
    env.step(env.expert())
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())
