"""TextWorldGame, on games of TextWorld's own generator and compiler and on a world in PDDL."""

from __future__ import annotations

import gc
import json
import shutil
import sys
from pathlib import Path

import gymnasium
import pytest
import yaml
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import check_recipe, load_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld.games import make_game, write_game
from reflectrl.envs.textworld_game import TextWorldGame

DOMAIN = """
(define (domain doors)
 (:requirements :adl :typing)
 (:types agent room)
 (:predicates (at ?a - agent ?r - room) (door ?f - room ?t - room) (rung ?r - room))
 (:action go :parameters (?a - agent ?f - room ?t - room)
  :precondition (and (at ?a ?f) (door ?f ?t)) :effect (and (not (at ?a ?f)) (at ?a ?t)))
 (:action ring :parameters (?a - agent ?r - room) :precondition (at ?a ?r) :effect (rung ?r)))
"""
PROBLEM = """
(define (problem hall) (:domain doors)
 (:objects you - agent hall kitchen attic - room)
 (:init (at you hall) (door hall kitchen) (door kitchen attic) (door attic kitchen) (door kitchen hall))
 (:goal (and (rung attic))))
"""
GRAMMAR = '''grammar :: """
{
 "intro": [{"rhs": "You are in a house. Ring in the attic."}],
 "go.feedback": [{"rhs": "You are in the {t.name}."}],
 "ring.feedback": [{"rhs": "It rings in the {r.name}."}]
}
""";
action go { template :: "go to {t}"; feedback :: "#go.feedback#"; }
action ring { template :: "ring the bell in {r}"; feedback :: "#ring.feedback#"; }
'''


@pytest.fixture
def world(tmp_path):
    """Three rooms in PDDL."""
    path = tmp_path / "world" / "house.tw-pddl"
    path.parent.mkdir()
    path.write_text(json.dumps({"pddl_domain": DOMAIN, "pddl_problem": PROBLEM, "grammar": GRAMMAR}))
    return path


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    """Three rooms, compiled by the Inform 7 that comes with TextWorld."""
    import textworld

    options = textworld.GameOptions()
    options.seeds = 3
    options.nb_rooms = 3
    options.nb_objects = 4
    options.quest_length = 3
    options.path = str(tmp_path_factory.mktemp("made") / "house.z8")
    path, _ = textworld.make(options)
    return path


@pytest.fixture
def folder(game, tmp_path):
    """Ten games, of which some lie deeper."""
    for number in range(10):
        place = tmp_path / "games" / ("deeper" if number % 2 else "")
        place.mkdir(parents=True, exist_ok=True)
        for suffix in (".z8", ".json"):
            shutil.copyfile(game.replace(".z8", suffix), place / f"house-{number}{suffix}")
    return tmp_path / "games"


@pytest.fixture
def make():
    """Make environments that are closed in the end."""
    made = []

    def one(*arguments, **options):
        made.append(TextWorldGame(*arguments, **options))
        return made[-1]

    yield one
    for env in made:
        env.close()


def play(env, task, choose):
    text, info = env.reset(seed=0, options={"task": task})
    seen, rewards, ended = [(text, info["actions"])], [], False
    while not ended:
        text, reward, terminated, truncated, info = env.step(choose(env))
        seen.append((text, info["actions"]))
        rewards.append(reward)
        ended = terminated or truncated
    return seen, rewards, info["success"]


def test_it_passes_our_checks(folder, make):
    check_env(make(str(folder), horizon=6), episodes=1)


def test_the_games_own_policy_wins(game, make):
    env = make(game)
    (task,) = env.tasks("train")
    seen, rewards, success = play(env, task, TextWorldGame.expert)
    assert success
    assert sum(rewards) == 1
    assert len(rewards) == 3
    assert env.expert() is None
    assert "*** The End ***" in seen[-1][0]


def test_a_state_shows_objective_room_and_belongings_once_and_no_banner_or_prompt(game, make):
    env = make(game)
    env.reset(options={"task": env.tasks("train")[0]})
    observation = env.observation
    assert observation.task.startswith("Task: ")
    assert len(observation.task) > 20
    assert observation.text.startswith("The game begins.\n-= ")
    assert "You are carrying" in observation.text
    assert "$" not in observation.full_text
    assert env.mistaken() is None
    told = []
    for action in ("go east", "inventory"):
        env.step(action)
        told.append(env.observation.text.split("\n"))
    (room, belongings), again = told
    assert room.startswith("-= Bedroom =- You find yourself")
    assert room.endswith("There is a type X latchkey on the floor.")
    assert (belongings, again[0]) == ("You are carrying: a vacuum.",) * 2
    assert again[1].startswith("-= Bedroom =- You find yourself")
    assert env.mistaken() is True  # it did not shorten the way to win
    while (action := env.expert()) is not None:
        env.step(action)
        assert env.mistaken() is False


def test_without_an_expert_nothing_is_planned_and_a_menu_is_never_cut(game, tmp_path, make):
    house = write_game(tmp_path, make_game("pick_and_place_simple", 1, scene=401))  # a game of ALFWorld is one too
    for env in (make(game, expert=False), make(str(house), expert=False)):
        assert [len(env.tasks(split)) for split in SPLITS] == [1, 0, 0]
        env.reset(options={"task": env.tasks("train")[0]})
        assert "inventory" in env.observation.actions
        assert env.expert() is None
        env.step(env.observation.actions[0])
        assert env.mistaken() is None
    with pytest.raises(InvalidInput, match="menu=2"):
        make(game, menu=2).reset(seed=0)
    for menu in (1, 2.5):
        with pytest.raises(InvalidInput, match=f"menu={menu}"):
            TextWorldGame(game, menu=menu)


def test_a_folder_is_split_seven_to_two_to_one(folder, make):
    env = make(str(folder))
    ids = {split: [task.id for task in env.tasks(split)] for split in SPLITS}
    assert {split: len(found) for split, found in ids.items()} == {"train": 7, "validation": 2, "test": 1}
    assert sorted(sum(ids.values(), [])) == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.z8"))
    assert ids == {split: [task.id for task in make(str(folder)).tasks(split)] for split in SPLITS}


def test_a_world_in_pddl_is_played_and_won_by_its_planner(world, make):
    arguments = sys.argv
    env = make(str(world))
    (task,) = env.tasks("train")
    seen, rewards, success = play(env, task, TextWorldGame.expert)
    assert success
    assert rewards == [0.0, 0.0, 1.0]
    assert env.observation.task == "Task: You are in a house. Ring in the attic."
    assert [text.rpartition("\n")[2] for text, _ in seen] == (
        ["The game begins.", "You are in the kitchen.", "You are in the attic.", "It rings in the attic."]
    )
    assert seen[1][1] == ("go to attic", "go to hall", "ring the bell in kitchen")
    assert sys.argv is arguments


@pytest.mark.parametrize("closed", [True, False])
def test_worlds_in_pddl_use_the_engines_of_those_that_are_over(world, closed):
    def libraries_after_an_episode():
        env = TextWorldGame(str(world))
        env.reset(options={"task": env.tasks("train")[0]})
        if closed:
            env.close()
        del env
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[5] for line in maps if "libdownward" in line}

    # the engine's parser remembers the last world, so one that was only dropped goes when the next one comes
    _, second, third = (libraries_after_an_episode() for _ in range(3))
    assert third == second


def test_nothing_is_left_open_written_or_printed(game, folder, world, tmp_path, monkeypatch, capfd):
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    files = sorted(tmp_path.rglob("*"))
    handles = None
    for _ in range(2):
        for games in (game, str(folder), str(world)):
            env = TextWorldGame(games, horizon=3)
            for task in env.tasks("train")[:2]:
                play(env, task, TextWorldGame.expert)
            env.close()
        handles = handles or sorted(Path("/proc/self/fd").iterdir())
    assert sorted(Path("/proc/self/fd").iterdir()) == handles
    assert sorted(tmp_path.rglob("*")) == files
    assert capfd.readouterr() == ("", "")


# ---- its name --------------------------------------------------------------------------------------------------------


def test_a_path_after_the_name_is_the_whole_environment(game):
    env = make_env(f"textworld:{game}", horizon=9)
    assert (type(env), env.name, env.horizon) == (TextWorldGame, "textworld", 9)
    assert [task.id for task in env.tasks("train")] == ["house.z8"]
    assert isinstance(gymnasium.make("reflectrl/Textworld-v0", games=game).unwrapped, TextWorldGame)


def test_a_recipe_names_its_games(folder, tmp_path):
    whole = load_recipe("number_line/nano").model_dump()
    whole["env"] = {"name": f"textworld:{folder}", "options": {"horizon": 9}}
    (tmp_path / "games.yaml").write_text(yaml.safe_dump(whole))
    recipe = load_recipe(str(tmp_path / "games.yaml"))
    check_recipe(recipe)
    assert recipe_env(recipe, tmp_path).tasks("test") == make_env(f"textworld:{folder}").tasks("test")
    with pytest.raises(InvalidInput, match=r"gone\.z8"):
        check_recipe(load_recipe(str(tmp_path / "games.yaml"), [f"env.name=textworld:{folder}/gone.z8"]))


# ---- what cannot be played -------------------------------------------------------------------------------------------


def test_after_a_game_that_cannot_be_played_others_can(folder, make):
    env = make(str(folder))
    first, second = env.tasks("train")[:2]
    (folder / first.id).write_bytes(b"")
    with pytest.raises(InvalidInput, match=first.id):
        env.reset(options={"task": first})
    env.reset(options={"task": second})
    assert env.observation.actions


def test_check_env_of_the_command_line_takes_a_path(folder, game):
    for path, counts in ((folder, ("7 train", "2 validation", "1 test")), (game, ("1 train", "0 validation"))):
        done = CliRunner().invoke(app, ["check-env", f"textworld:{path}", "horizon=2"])
        assert done.exit_code == 0, done.output
        assert all(count in done.stdout for count in counts)


@pytest.mark.parametrize("name", ["gone.z8", "notes.txt", "game.ulx", "game.json", "empty"])
def test_what_is_no_game_is_refused(tmp_path, game, make, name):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match=name):
        TextWorldGame(str(tmp_path / name))
    with pytest.raises(InvalidInput, match=r"'other\.z8'"):
        make(game).reset(options={"task": Task("other.z8", {"game": "other.z8"})})


def spoilt(story, place, value):
    return story[:place] + bytes([value]) + story[place + 1 :]


DAMAGE = {
    "torn": lambda story: story[:20_000],
    "torn in its header": lambda story: story[:10],
    "empty": lambda _: b"",
    "changed": lambda story: spoilt(story, 5_000, story[5_000] ^ 1),
    "of another version": lambda story: spoilt(story, 0, 5),
}


@pytest.mark.parametrize("damage", [*DAMAGE, "{", "[]", "{}", "no description"])
def test_a_damaged_game_is_refused_and_does_not_end_the_process(game, tmp_path, make, damage):
    for suffix in (".z8", ".json"):
        shutil.copyfile(game.replace(".z8", suffix), tmp_path / f"odd{suffix}")
    if damage in DAMAGE:
        (tmp_path / "odd.z8").write_bytes(DAMAGE[damage](Path(game).read_bytes()))
    elif damage == "no description":
        (tmp_path / "odd.json").unlink()
    else:
        (tmp_path / "odd.json").write_text(damage)
    env = make(str(tmp_path / "odd.z8"))
    with pytest.raises(InvalidInput, match=r"odd\.z8"):
        env.reset(options={"task": env.tasks("train")[0]})


@pytest.mark.parametrize(
    "changes",
    [
        {"pddl_domain": DOMAIN.replace("(rung ?r - room)", "")},
        {"pddl_problem": PROBLEM.replace("(rung attic)", "(seen attic)")},
        {"pddl_problem": PROBLEM[:-20]},
        {"pddl_problem": PROBLEM.replace("(door kitchen attic)", "")},
        {"grammar": GRAMMAR.replace("action", "acton")},
        {"grammar": GRAMMAR.replace("ring.feedback", "sing.feedback", 1)},
        {"pddl_domain": "", "pddl_problem": "", "grammar": ""},
        "{}",
        "{",
    ],
    ids=["undeclared", "undeclared goal", "torn", "no way to the goal", "no grammar", "no answer"]
    + ["empty", "no parts", "no JSON"],
)
def test_a_damaged_world_is_refused(world, make, changes):
    text = changes if isinstance(changes, str) else json.dumps({**json.loads(world.read_text()), **changes})
    world.write_text(text)
    env = make(str(world))
    with pytest.raises(InvalidInput, match=r"house\.tw-pddl"):
        play(env, env.tasks("train")[0], TextWorldGame.expert)


def test_a_world_that_cannot_be_won_has_no_expert(world, make):
    world.write_text(world.read_text().replace("(rung attic)", "(rung hall) (at you hall) (at you attic)"))
    env = make(str(world))
    env.reset(options={"task": env.tasks("train")[0]})
    assert env.expert() is None
