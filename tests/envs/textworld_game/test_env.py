"""TextWorldGame, on games of TextWorld's own generator and compiler and on a world in PDDL."""

from __future__ import annotations

import gc
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from alfworld_games import write_game
from command_line import reflectrl

from reflectrl.config import check_recipe, load_recipe
from reflectrl.config.environment import recipe_env
from reflectrl.core import InvalidInput, Task, check_env, make_env
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld.games import make_game
from reflectrl.envs.textworld_game import TextWorldGame
from reflectrl.envs.textworld_game.env import described

pytestmark = pytest.mark.slow

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
    options.seeds = options.nb_rooms = options.quest_length = 3
    options.nb_objects = 4
    options.path = str(tmp_path_factory.mktemp("made") / "house.z8")
    return textworld.make(options)[0]


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
def begun():
    """Make environments that have begun their first training task, and are closed in the end."""
    made = []

    def one(*arguments, **options):
        made.append(TextWorldGame(*arguments, **options))
        made[-1].reset(seed=0, options={"task": made[-1].tasks("train")[0]})
        return made[-1]

    yield one
    for env in made:
        env.close()


def win(env):
    """Follow the expert; texts, menus and rewards of its steps."""
    shown = []
    while (action := env.expert()) is not None:
        text, reward, _, _, info = env.step(action)
        assert env.mistaken() is False
        shown.append((text, info["actions"], reward))
    assert info["success"]
    return shown


def test_the_state_of_a_compiled_game_and_its_own_policy(game, begun):
    env = begun(game)
    seen = env.observation
    assert re.match(r"Task: .{20}", seen.task)
    assert seen.text.startswith("The game begins.\n-= ")
    assert "You are carrying" in seen.text
    assert "$" not in seen.full_text  # of the banner
    assert env.mistaken() is None
    lines = []
    for action in ("go east", "inventory"):
        env.step(action)
        lines.append(env.observation.text.split("\n"))
    (room, belongings), again = lines
    assert room.startswith("-= Bedroom =- You find yourself")
    assert room.endswith("There is a type X latchkey on the floor.")
    assert (belongings, again[0]) == ("You are carrying: a vacuum.",) * 2
    assert again[1].startswith("-= Bedroom =- You find yourself")
    assert env.mistaken() is True  # it did not shorten the way to win
    win(env)
    env.reset(options={"task": env.task})
    shown = win(env)
    assert (len(shown), sum(reward for *_, reward in shown)) == (3, 1)
    assert shown[-1][0].split("\n")[1]  # an answer to the last command, which does not tell how the game ended
    assert not re.search(r"\*\*\*|[Ss]core", shown[-1][0])


def test_without_an_expert_nothing_is_planned_and_a_menu_is_never_cut(game, tmp_path, begun):
    house = write_game(tmp_path, make_game("pick_and_place_simple", 1, scene=401))  # a game of ALFWorld is one too
    for env in (begun(game, expert=False), begun(str(house), expert=False)):
        assert [len(env.tasks(split)) for split in SPLITS] == [1, 0, 0]
        assert "inventory" in env.observation.actions
        env.step(env.observation.actions[0])
        assert (env.expert(), env.mistaken()) == (None, None)
    with pytest.raises(InvalidInput, match="menu=2"):
        begun(game, menu=2)
    with pytest.raises(InvalidInput, match="menu=1"):
        TextWorldGame(game, menu=1)


def test_a_folder_is_split_and_survives_a_bad_game(folder):
    check_env(TextWorldGame(str(folder), horizon=6), episodes=1)
    env = TextWorldGame(str(folder))
    ids = [[task.id for task in env.tasks(split)] for split in SPLITS]
    assert list(map(len, ids)) == [7, 2, 1]
    assert sorted(sum(ids, [])) == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.z8"))
    assert ids == [[task.id for task in TextWorldGame(str(folder)).tasks(split)] for split in SPLITS]
    first, second = env.tasks("train")[:2]
    (folder / first.id).write_bytes(b"")
    with pytest.raises(InvalidInput, match=first.id):
        env.reset(options={"task": first})
    env.reset(options={"task": second})
    assert env.observation.actions
    env.close()


def test_a_world_in_pddl_is_played_and_won_by_its_planner(world, begun):
    arguments = sys.argv
    env = begun(str(world))
    assert env.observation.task == "Task: You are in a house. Ring in the attic."
    texts, menus, rewards = zip(*win(env), strict=True)
    assert rewards == (0.0, 0.0, 1.0)
    assert [text.rpartition("\n")[2] for text in texts] == (
        ["You are in the kitchen.", "You are in the attic.", "It rings in the attic."]
    )
    assert menus[0] == ("go to attic", "go to hall", "ring the bell in kitchen")
    assert sys.argv is arguments
    world.write_text(world.read_text().replace("(rung attic)", "(rung hall) (at you hall) (at you attic)"))
    assert begun(str(world)).expert() is None  # it cannot be won


def test_nothing_is_left_open_loaded_written_or_printed(game, folder, world, tmp_path, monkeypatch, capfd):
    (tmp_path / "here").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    files, left = sorted(tmp_path.rglob("*")), []
    for _ in range(3):
        for games in (game, str(folder), str(world)):
            env = TextWorldGame(games)
            for task in env.tasks("train")[:1]:
                env.reset(options={"task": task})
                win(env)
            if games == game:
                env.close()
            del env  # one that is not closed is put away all the same
            gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        libraries = {line.split(maxsplit=5)[5] for line in maps if "libdownward" in line}
        left.append((sorted(Path("/proc/self/fd").iterdir()), libraries))
    # the engine's parser remembers the last world, so one that was only dropped goes when the next one comes
    assert left[1] == left[2]
    assert sorted(tmp_path.rglob("*")) == files
    assert capfd.readouterr() == ("", "")


def test_a_path_after_the_name_is_the_whole_environment(folder, game, tmp_path):
    env = make_env(f"textworld:{game}", horizon=9)
    assert (type(env), env.name, env.horizon) == (TextWorldGame, "textworld", 9)
    done = reflectrl("check-env", f"textworld:{game}", "horizon=2")
    assert (done.code, done.err) == (0, "")
    assert "1 train, 0 validation" in done.out
    whole = load_recipe("number_line/nano").model_dump()
    whole["env"] = {"name": f"textworld:{folder}", "options": {"horizon": 9}}
    (tmp_path / "games.yaml").write_text(yaml.safe_dump(whole))
    recipe = load_recipe(str(tmp_path / "games.yaml"))
    check_recipe(recipe)
    assert recipe_env(recipe, tmp_path).tasks("test") == make_env(f"textworld:{folder}").tasks("test")
    with pytest.raises(InvalidInput, match=r"gone\.z8"):
        check_recipe(load_recipe(str(tmp_path / "games.yaml"), [f"env.name=textworld:{folder}/gone.z8"]))


# ---- what cannot be played -------------------------------------------------------------------------------------------


def test_a_game_in_json_alone_is_played_in_words_from_its_facts(game, tmp_path, begun):
    told, alone = begun(game), begun(shutil.copyfile(Path(game).with_suffix(".json"), tmp_path / "house.json"))
    assert alone.observation.task == told.observation.task
    assert alone.observation.text.startswith("The game begins.\nYou are in the ")
    assert alone.observation.text.splitlines()[-1].startswith("You carry: ")
    ways = []
    for env in (told, alone):
        path = []
        while (action := env.expert()) is not None:
            path.append(action)
            _, reward, ended, _, info = env.step(action)
        ways.append((path, reward, ended, info["success"]))
    assert ways[0] == ways[1]
    assert ways[1][1:] == (1.0, True, True)
    assert "Done: " not in alone.observation.text
    check_env(TextWorldGame(str(tmp_path / "house.json")))


def test_a_folder_takes_json_for_a_game_only_if_it_is_one_without_a_story(folder):
    (folder / "house-0.z8").unlink()
    (folder / "notes.json").write_text('{"version": 1, "title": "no game"}')
    names = [task.id for split in SPLITS for task in TextWorldGame(str(folder)).tasks(split)]
    assert len(names) == 10
    assert [name for name in names if not name.endswith(".z8")] == ["house-0.json"]


def test_facts_become_words_and_what_is_shut_hides_what_it_holds():
    from textworld.logic import Proposition, Variable

    def fact(name, *things, kind="o"):
        return Proposition(name, [Variable(thing, kind) for thing in things])

    facts = [
        *(
            fact("at", "P", "hall"),
            fact("at", "chest", "hall"),
            fact("at", "table", "hall"),
            fact("at", "bed", "attic"),
        ),
        *(fact("in", "coin", "chest"), fact("on", "box", "table"), fact("in", "pearl", "box"), fact("in", "key", "I")),
        *(fact("locked", "chest"), fact("open", "box"), fact("free", "slot_1", kind="slot")),
        *(fact("north_of", "attic", "hall"), fact("south_of", "hall", "attic"), fact("west_of", "yard", "hall")),
        *(fact("link", "hall", "iron door", "attic"), fact("link", "attic", "iron door", "hall")),
        *(fact("closed", "iron door"), fact("free", "hall", "yard")),
    ]
    assert (
        described(facts[::-1])
        == described(facts)
        == (
            "You are in the hall.\n"
            "You see: chest (locked), table with box (open) with pearl.\n"
            "Exits: north through iron door (closed), west.\n"
            "You carry: key."
        )
    )


@pytest.mark.parametrize("content", ['{"version": 1, "world": [', '{"version": 1}', '{"version": 9}', "[]"])
def test_a_damaged_game_in_json_is_refused(content, tmp_path, begun):
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"odd\.json cannot be played"):
        begun(str(tmp_path / "odd.json"))


def test_what_is_no_game_is_refused(tmp_path, game, begun):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "empty").mkdir()
    for name in ("gone.z8", "notes.txt", "empty"):
        with pytest.raises(InvalidInput, match=name):
            TextWorldGame(str(tmp_path / name))
    with pytest.raises(InvalidInput, match=r"'other\.z8'"):
        begun(game).reset(options={"task": Task("other.z8", {"game": "other.z8"})})


GAME = {
    "a torn story": lambda path: path.write_bytes(path.read_bytes()[:20_000]),
    "a changed story": lambda path: path.write_bytes(path.read_bytes().replace(b"e", b"E")),
    "no description": lambda path: path.with_suffix(".json").unlink(),
}
WORLD = {
    "no way to the goal": {"pddl_problem": PROBLEM.replace("(door kitchen attic)", "")},
    "no grammar": {"grammar": GRAMMAR.replace("action", "acton")},
    "no answer": {"grammar": GRAMMAR.replace("ring.feedback", "sing.feedback", 1)},
}


@pytest.mark.parametrize("damage", [*GAME, *WORLD])
def test_a_damaged_game_is_refused_and_does_not_end_the_process(game, world, tmp_path, begun, damage):
    path = world
    if damage in GAME:
        path = Path(shutil.copyfile(game, tmp_path / "odd.z8"))
        shutil.copyfile(Path(game).with_suffix(".json"), tmp_path / "odd.json")
        GAME[damage](path)
    else:
        world.write_text(json.dumps({**json.loads(world.read_text()), **WORLD[damage]}))
    with pytest.raises(InvalidInput, match=path.name):
        win(begun(str(path)))
