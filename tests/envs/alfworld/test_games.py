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


def floor_plans(games):
    return {game.scene for game in games}


def digest(games):
    return hashlib.sha256(repr(games).encode()).hexdigest()


@pytest.mark.parametrize("family", FAMILIES)
def test_one_seed_makes_one_game(family):
    assert make_game(family, 7) == make_game(family, 7)
    assert len({make_game(family, seed).problem for seed in range(5)}) == 5


def test_games_do_not_depend_on_the_order_in_which_python_keeps_sets():
    code = (
        "import hashlib; from reflectrl.envs.alfworld.games import make_games; "
        "print(hashlib.sha256(repr(make_games('all', 'train', 12)).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest(make_games("all", "train", 12))


@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_neither_floor_plans_nor_names(kind):
    splits = {split: make_games(kind, split, 60, seed=3) for split in SPLITS}
    for split, games in splits.items():
        assert len({game.name for game in games}) == 60
        others = [game for other in SPLITS if other != split for game in splits[other]]
        assert floor_plans(games).isdisjoint(floor_plans(others))
    numbers = {int(game.scene.removeprefix("FloorPlan")) % 100 for game in splits["test"]}
    assert numbers <= set(range(1, 7)), "as ALFWorld's unseen ones"


def test_more_games_begin_with_the_fewer_ones_and_another_seed_makes_others():
    assert make_games("all", "train", 5) == make_games("all", "train", 9)[:5]
    assert {game.name for game in make_games("all", "train", 9)}.isdisjoint(
        game.name for game in make_games("all", "train", 9, seed=1)
    )


def test_tomato_games_are_those_of_the_paper():
    games = make_games("tomato", "test", 8)
    assert {(game.family, game.targets["object_target"], game.targets["parent_target"]) for game in games} == {
        ("pick_and_place_simple", "Tomato", "Microwave")
    }
    assert {game.goal for game in games} == {"put a tomato in microwave", "put some tomato on microwave"}


def test_all_families_come_in_turn():
    assert [game.family for game in make_games("all", "validation", 12)] == [*FAMILIES, *FAMILIES]


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
@pytest.mark.parametrize("seed", range(12))
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


def test_every_kind_of_room_has_games():
    rooms = {scene(int(game.scene.removeprefix("FloorPlan"))).room for game in make_games("all", "test", 60)}
    assert rooms == {"Kitchen", "LivingRoom", "Bedroom", "Bathroom"}


def test_a_game_written_is_the_game_read(tmp_path):
    for game in make_games("all", "train", 6):
        path = write_game(tmp_path / game.name, game)
        assert path == tmp_path / game.name / "game.tw-pddl"
        assert read_game(path) == game
        assert game.dialect == "move"
    assert game.put("cup 1", "shelf 2") == "move cup 1 to shelf 2"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"family": "pick_and_place"}, r"family 'pick_and_place' is unknown; did you mean 'pick_and_place_simple'"),
        ({"seed": 1.5}, r"seed=1.5 was given for a game; expected a whole number"),
        ({"object": "Tomatoe"}, r"object Tomatoe and .* cannot be made in any floor plan; did you mean 'Tomato'"),
        ({"object": "Tomato", "receptacle": "Bed"}, r"receptacle Bed cannot be made.*Known: CounterTop, .*Microwave"),
        ({"object": "Tomato", "scene": 401}, r"object Tomato .* cannot be made in floor plan 401; Known: .*SoapBar"),
        ({"scene": 31}, r"floor plan 31 does not exist; expected 1 to 30 \(Kitchen\), 201 to 230"),
    ],
)
def test_what_cannot_be_made_is_refused(given, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        make_game(**{"family": "pick_and_place_simple", "seed": 0, **given})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (("tomatoes", "train", 1), r"kind 'tomatoes' of games is unknown; did you mean 'tomato'"),
        (("all", "valid", 1), r"split 'valid' is unknown; did you mean 'validation'"),
        (("all", "train", 0), r"0 games were asked for; expected 1 or more"),
    ],
)
def test_lists_that_cannot_be_made_are_refused(given, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        make_games(*given)


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "alfworld", raising=False)
    with pytest.raises(InvalidInput, match=r"need the package alfworld.*; run pip install 'reflectrl\[alfworld\]'\."):
        package_file("data", "alfred.pddl")


def test_another_version_of_the_package_is_said_to_be_one(tmp_path, monkeypatch):
    (tmp_path / "alfworld").mkdir()
    (tmp_path / "alfworld" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "alfworld", raising=False)
    with pytest.raises(
        InvalidInput, match=r"alfworld has no file data/alfred.pddl; expected version 0.4: run pip install"
    ):
        package_file("data", "alfred.pddl")


def broken(key, value):
    def change(data):
        data[key] = value(data.get(key)) if callable(value) else value

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (broken("pddl_problem", None), r"game.tw-pddl has no text 'pddl_problem'; expected a game of ALFWorld"),
        (broken("pddl_problem", lambda text: text[:-3]), r"has unequal numbers of '\(' and '\)'; expected whole PDDL"),
        (broken("pddl_problem", "(define (problem p))"), r"lacks \(:domain, \(:objects, \(:init, \(:goal; expected"),
        (broken("grammar", "grammar :: {}"), r"game.tw-pddl names no task; expected a game of alfworld 0.2 to 0.4"),
        (
            broken("grammar", lambda text: text.replace("move {o} to {r}", "drop {o} at {r}")),
            r"grammar of another version, which says 'drop {o} at {r}'; expected 'move {o} to {r}' or 'put {o} in/on",
        ),
        (
            broken("grammar", lambda text: text.replace("action PutObject", "action Put")),
            r"grammar of another version, which has no action PutObject",
        ),
    ],
)
def test_a_damaged_game_is_refused(tmp_path, change, sentence):
    path = write_game(tmp_path, make_game("pick_and_place_simple", 0))
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInput, match=sentence):
        read_game(path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("game.tw-pddl", "{", r"game.tw-pddl cannot be read \(.*\); expected a file of JSON"),
        ("game.tw-pddl", "[]", r"game.tw-pddl holds a list; expected an object of JSON"),
        ("traj_data.json", "\udcff", r"traj_data.json cannot be read"),
        ("traj_data.json", "{}", r"traj_data.json has task_type None and pddl_params None; expected one of pick_and"),
    ],
)
def test_files_that_are_no_game_are_refused(tmp_path, name, text, sentence):
    path = write_game(tmp_path, make_game("pick_and_place_simple", 0))
    (tmp_path / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput, match=sentence):
        read_game(path)


def test_a_missing_game_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"game.tw-pddl cannot be read"):
        read_game(tmp_path / "game.tw-pddl")


def test_families_that_are_not_asked_for_need_no_floor_plan():
    heated = make_games("all", "train", 2, scenes=[14, 21], families=["pick_heat_then_place_in_recep"])
    assert {game.family for game in heated} == {"pick_heat_then_place_in_recep"}
    everything = make_games("all", "train", 12)
    assert make_games("all", "train", 2, families=[FAMILIES[3]]) == tuple(
        g for g in everything if g.family == FAMILIES[3]
    )
    with pytest.raises(InvalidInput, match="kind 'tomato' has pick_and_place_simple"):
        make_games("tomato", "train", 1, families=FAMILIES[1:])
