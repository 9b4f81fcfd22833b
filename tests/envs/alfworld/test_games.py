"""Games of our own: what they promise, and that ALFWorld's own stack plays them to the end."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from reflectrl.core import InvalidInput
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld.games import FAMILIES, KINDS, make_game, make_games, read_game, write_game
from reflectrl.envs.alfworld.problem import goals_in
from reflectrl.envs.alfworld.scenes import LAMP, package_file, rules, scene


def facts(problem, name):
    """The arguments of every fact called ``name`` at the start."""
    start = problem.partition("(:init")[2].partition("(:goal")[0]
    return [tuple(found.split()) for found in re.findall(rf"\({name} ([^()]*)\)", start)]


def of_kind(problem, kind):
    return {thing for thing, found in facts(problem, "objectType") if found == f"{kind}Type"}


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_neither_floor_plans_nor_names(kind):
    splits = {split: make_games(kind, split, 60, seed=3) for split in SPLITS}
    for split, games in splits.items():
        assert len({game.name for game in games}) == 60
        others = [game for other in SPLITS if other != split for game in splits[other]]
        assert {game.scene for game in games}.isdisjoint(game.scene for game in others)
    numbers = {int(game.scene.removeprefix("FloorPlan")) % 100 for game in splits["test"]}
    assert numbers <= set(range(1, 7)), "as ALFWorld's unseen ones"


def test_tomato_games_are_those_of_the_paper():
    games = make_games("tomato", "test", 8)
    assert {(game.family, game.targets["object_target"], game.targets["parent_target"]) for game in games} == {
        ("pick_and_place_simple", "Tomato", "Microwave")
    }
    assert {game.goal for game in games} == {"put a tomato in microwave", "put some tomato on microwave"}


def test_what_is_asked_for_is_what_is_made():
    game = make_game("pick_heat_then_place_in_recep", 5, object="Apple", receptacle="Fridge", scene=12)
    assert game.name == "pick_heat_then_place_in_recep-Apple-None-Fridge-12/seed-5"
    assert (game.scene, game.targets) == (
        "FloorPlan12",
        {"object_target": "Apple", "parent_target": "Fridge", "toggle_target": ""},
    )
    assert game.goal in ("put a hot apple in fridge", "heat some apple and put it in fridge")
    assert f"Your task is to: {game.goal}." in game.grammar
    lit = make_game("look_at_obj_in_light", 5, object="Book")
    assert lit.targets == {"object_target": "Book", "parent_target": "", "toggle_target": LAMP}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(4))
def test_a_start_is_a_possible_one_and_not_yet_won(family, seed):
    game = make_game(family, seed)
    holds = rules().holds
    kinds = {place: kind.removesuffix("Type") for place, kind in facts(game.problem, "receptacleType")}
    things = {thing: kind.removesuffix("Type") for thing, kind in facts(game.problem, "objectType")}
    where = dict(facts(game.problem, "inReceptacle"))
    assert set(where) == set(things)
    for thing, place in where.items():
        assert things[thing] == LAMP or things[thing] in holds[kinds[place]]
    wanted = of_kind(game.problem, game.targets["object_target"])
    assert len(wanted) >= (2 if family == "pick_two_obj_and_place" else 1)
    assert game.targets["parent_target"] not in {kinds[where[thing]] for thing in wanted}
    assert {(thing,) for thing in wanted} <= set(facts(game.problem, "pickupable"))
    ((_, start),) = facts(game.problem, "atLocation")
    assert start not in {location for _, location in facts(game.problem, "receptacleAtLocation")}
    declared = re.findall(r"^(\S+) - ", game.problem, re.MULTILINE)
    assert [name for name, count in Counter(declared).items() if count > 1] == []


def test_what_cleans_heats_or_cools_a_thing_is_not_where_it_goes():
    tools = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
    for family in FAMILIES[2:5]:
        goals = {goal for number in range(1, 31) for goal in goals_in(family, scene(number))}
        targets = {target for _, target in goals}
        assert targets
        assert tools[family.split("_")[1]] not in targets


def test_a_game_written_is_the_game_read(tmp_path):
    for game in make_games("all", "train", 6):
        path = write_game(tmp_path / game.name, game)
        assert path == tmp_path / game.name / "game.tw-pddl"
        assert read_game(path) == game
        assert game.dialect == "move"
    assert game.put("cup 1", "shelf 2") == "move cup 1 to shelf 2"


def test_a_list_of_games_depends_on_its_arguments_only():
    games = make_games("all", "train", 12)
    assert [game.family for game in games] == [*FAMILIES, *FAMILIES]
    assert make_games("all", "train", 5) == games[:5]
    assert {game.name for game in games}.isdisjoint(game.name for game in make_games("all", "train", 9, seed=1))
    assert make_games("all", "train", 2, families=[FAMILIES[3]]) == tuple(g for g in games if g.family == FAMILIES[3])
    heated = make_games("all", "train", 2, scenes=[14, 21], families=[FAMILIES[3]])  # no other needs its floor plans
    assert {game.family for game in heated} == {FAMILIES[3]}
    rooms = {scene(int(game.scene.removeprefix("FloorPlan"))).room for game in make_games("all", "test", 60)}
    assert rooms == {"Kitchen", "LivingRoom", "Bedroom", "Bathroom"}
    code = (
        "import hashlib; from reflectrl.envs.alfworld.games import make_games; "
        "print(hashlib.sha256(repr(make_games('all', 'train', 12)).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}  # another order of sets
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(repr(games).encode()).hexdigest()


@pytest.mark.parametrize(
    ("given", "fact"),
    [
        ({"family": "pick_and_place"}, "'pick_and_place_simple'"),
        ({"seed": 1.5}, "1.5"),
        ({"object": "Tomatoe"}, "'Tomato'"),
        ({"object": "Tomato", "receptacle": "Bed"}, "Bed.*Microwave"),
        ({"object": "Tomato", "scene": 401}, "401.*SoapBar"),
        ({"scene": 31}, "31.*201"),
        (("tomatoes", "train", 1), "'tomato'"),
        (("all", "valid", 1), "'validation'"),
        (("all", "train", 0), "0"),
        (("tomato", "train", 1, 0, None, FAMILIES[1:]), "'tomato'.*pick_and_place_simple"),
    ],
)
def test_what_cannot_be_made_is_refused(given, fact):
    with pytest.raises(InvalidInput, match=fact):
        make_games(*given) if isinstance(given, tuple) else make_game(**{"family": FAMILIES[0], "seed": 0, **given})


@pytest.mark.parametrize(("installed", "fact"), [(False, "alfworld"), (True, r"data/alfred\.pddl")])
def test_without_the_right_package_one_sentence_says_what_to_install(installed, fact, tmp_path, monkeypatch):
    if installed:
        (tmp_path / "alfworld").mkdir()
        (tmp_path / "alfworld" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "alfworld", raising=False)
    with pytest.raises(InvalidInput, match=rf"{fact}.*pip install 'reflectrl\[alfworld\]'"):
        package_file("data", "alfred.pddl")


@pytest.mark.parametrize(
    ("key", "change", "fact"),
    [
        ("pddl_problem", lambda _: None, "'pddl_problem'"),
        ("pddl_problem", lambda text: text[:-3], r"'\('"),
        ("pddl_problem", lambda _: "(define (problem p))", r"\(:domain"),
        ("grammar", lambda _: "grammar :: {}", "game.tw-pddl"),
        ("grammar", lambda text: text.replace("move {o} to {r}", "drop {o} at {r}"), "'drop {o} at {r}'"),
        ("grammar", lambda text: text.replace("action PutObject", "action Put"), "PutObject"),
    ],
)
def test_a_damaged_game_is_refused(tmp_path, key, change, fact):
    path = write_game(tmp_path, make_game("pick_and_place_simple", 0))
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, key: change(data[key])}))
    with pytest.raises(InvalidInput, match=fact):
        read_game(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [("game.tw-pddl", b"{"), ("game.tw-pddl", b"[]"), ("game.tw-pddl", None), ("traj_data.json", b"\xff")]
    + [("traj_data.json", b"{}")],
)
def test_files_that_are_no_game_are_refused(tmp_path, name, text):
    path = write_game(tmp_path, make_game("pick_and_place_simple", 0))
    (tmp_path / name).unlink()
    if text is not None:
        (tmp_path / name).write_bytes(text)
    with pytest.raises(InvalidInput, match=name):
        read_game(path)
