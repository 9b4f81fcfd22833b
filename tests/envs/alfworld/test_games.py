"""Games of our own: what they promise, and that files of games are read back, or refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict

import pytest
from alfworld_games import write_game

from reflectrl.core import InvalidInput
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld.games import FAMILIES, KINDS, goals_in, make_game, make_games, read_game
from reflectrl.envs.alfworld.scenes import LAMP, rules, scene


def facts(problem, name):
    """The arguments of every fact called ``name`` at the start."""
    start = problem.partition("(:init")[2].partition("(:goal")[0]
    return [tuple(found.split()) for found in re.findall(rf"\({name} ([^()]*)\)", start)]


def plan(game):
    """Number of its floor plan."""
    return int(game.name.partition("/")[0].rpartition("-")[2])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_splits_share_no_games_and_no_floor_plans_unless_these_are_chosen(kind):
    splits = {split: make_games(kind, split, 60, seed=3) for split in SPLITS}
    plans = {split: {plan(game) for game in games} for split, games in splits.items()}
    assert {number % 100 for number in plans["test"]} <= set(range(1, 7)), "as ALFWorld's unseen ones"
    assert sum(map(len, plans.values())) == len(set().union(*plans.values()))
    if kind == "all":
        assert {scene(number).room for number in plans["test"]} == {"Kitchen", "LivingRoom", "Bedroom", "Bathroom"}
    chosen = [game for split in SPLITS for game in make_games("tomato", split, 20, scenes=(14, 29))]
    assert {plan(game) for game in chosen} == {14, 29}
    assert len({game.problem.partition("(:init")[2] for game in chosen}) == len(chosen)
    for games in (chosen, [game for split in SPLITS for game in splits[split]]):
        assert len({game.name for game in games}) == len(games)


def test_games_are_those_that_were_asked_for():
    tomato = make_games("tomato", "test", 8)
    assert {game.name.partition("-None")[0] for game in tomato} == {"pick_and_place_simple-Tomato"}
    assert {game.goal for game in tomato} == {"put a tomato in microwave", "put some tomato on microwave"}
    game = make_game("pick_heat_then_place_in_recep", 5, object="Apple", receptacle="Fridge", scene=12)
    assert game.name == "pick_heat_then_place_in_recep-Apple-None-Fridge-12/seed-5"
    assert game.targets == {"object_target": "Apple", "parent_target": "Fridge", "toggle_target": ""}
    assert game.goal in ("put a hot apple in fridge", "heat some apple and put it in fridge")
    assert f"Your task is to: {game.goal}." in game.grammar
    assert game.put("cup 1", "shelf 2") == "move cup 1 to shelf 2"
    lit = make_game("look_at_obj_in_light", 5, object="Book")
    assert lit.targets == {"object_target": "Book", "parent_target": "", "toggle_target": LAMP}


def test_a_household_keeps_things_in_their_places():
    kept, plans = defaultdict(set), defaultdict(set)
    for split in SPLITS:
        for game in make_games("tomato", split, 40, scenes=[14, 21], households=5):
            assert game.group == f"pick_and_place_simple in household {game.household}"
            plans[game.household].add(plan(game))
            things = dict(facts(game.problem, "objectType"))
            for thing, place in facts(game.problem, "inReceptacle"):
                kept[game.household, things[thing]].add(place)
    assert {number: len(found) for number, found in plans.items()} == dict.fromkeys(range(5), 1)
    assert {len(places) for places in kept.values()} == {1}
    assert len({place for number in range(5) for place in kept[number, "TomatoType"]}) > 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_start_is_a_possible_one_and_not_yet_won(family):
    holds = rules().holds
    for seed in range(4):
        game = make_game(family, seed)
        kinds = {place: kind.removesuffix("Type") for place, kind in facts(game.problem, "receptacleType")}
        things = {thing: kind.removesuffix("Type") for thing, kind in facts(game.problem, "objectType")}
        where = dict(facts(game.problem, "inReceptacle"))
        assert set(where) == set(things)
        for thing, place in where.items():
            assert things[thing] == LAMP or things[thing] in holds[kinds[place]]
        wanted = {thing for thing, kind in things.items() if kind == game.targets["object_target"]}
        assert len(wanted) >= (2 if family == "pick_two_obj_and_place" else 1)
        assert game.targets["parent_target"] not in {kinds[where[thing]] for thing in wanted}
        assert {(thing,) for thing in wanted} <= set(facts(game.problem, "pickupable"))
        ((_, start),) = facts(game.problem, "atLocation")
        assert start not in {location for _, location in facts(game.problem, "receptacleAtLocation")}
        declared = re.findall(r"^(\S+) - ", game.problem, re.MULTILINE)
        assert [name for name, count in Counter(declared).items() if count > 1] == []


def test_what_cleans_heats_or_cools_a_thing_is_not_where_it_goes():
    for family, tool in zip(FAMILIES[2:5], ("SinkBasin", "Microwave", "Fridge"), strict=True):
        targets = {target for number in range(1, 31) for _, target in goals_in(family, scene(number))}
        assert targets
        assert tool not in targets


@pytest.mark.slow
def test_a_list_of_games_depends_on_its_arguments_only():
    games = make_games("all", "train", 12)
    assert [game.family for game in games] == [*FAMILIES, *FAMILIES]
    assert make_games("all", "train", 5) == games[:5]
    assert {game.name for game in games}.isdisjoint(game.name for game in make_games("all", "train", 9, seed=1))
    assert make_games("all", "train", 2, families=[FAMILIES[3]]) == (games[3], games[9])
    heated = make_games("all", "train", 2, scenes=[14, 21], families=[FAMILIES[3]])  # no other needs its floor plans
    assert {game.family for game in heated} == {FAMILIES[3]}
    code = (
        "import hashlib; from reflectrl.envs.alfworld.games import make_games; "
        "print(hashlib.sha256(repr(make_games('all', 'train', 12)).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77"}  # another order of sets
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(repr(games).encode()).hexdigest()


@pytest.mark.parametrize(
    ("key", "old", "new", "fact"),
    [
        ("pddl_problem", "(:goal", "(goal", r"\(:goal"),
        ("grammar", "Your task is to", "Do", "game.tw-pddl"),
        ("grammar", "move {o} to {r}", "drop {o} at {r}", "'drop {o} at {r}'"),
    ],
)
def test_a_game_round_trips(tmp_path, key, old, new, fact):
    game = make_game("pick_and_place_simple", 0)
    path = write_game(tmp_path / game.name, game)
    assert read_game(path) == game
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, key: data[key].replace(old, new)}))
    with pytest.raises(InvalidInput, match=fact):
        read_game(path)
