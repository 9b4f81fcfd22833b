"""The published layout, as a fixture made of our own games: what ALFWorld would play of it, and how it is spoken."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace

import pytest
from alfworld_games import FOLDERS, HOUSES, TRIAL, older, publish, write_game

from reflectrl.core import InvalidInput
from reflectrl.core.types import SPLITS
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.catalogue import published_games
from reflectrl.envs.alfworld.games import FAMILIES, make_game, make_games, read_game

GAMES = {split: make_games("all", split, 6, scenes=HOUSES) for split in SPLITS}
"""A small game of each family, the validation games in the older dialect."""
GAMES["validation"] = tuple(map(older, GAMES["validation"]))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("published") / "json_2.1.1"
    for split, games in GAMES.items():
        for game in games:
            publish(root / FOLDERS[split], game)
    return root


@pytest.fixture
def copy(data, tmp_path):
    """A copy to be changed."""
    return shutil.copytree(data, tmp_path / "json_2.1.1")


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_sorted_and_its_games_read_as_they_were_written(data, split):
    games = published_games(split, data)
    assert games == published_games(split, data.parent)
    assert [game.name for game in games] == sorted(game.name for game in games)
    assert [task.id for task in AlfWorld(str(data)).tasks(split)] == [game.name for game in games]
    names = {f"{game.name.partition('/')[0]}/{TRIAL}": game for game in GAMES[split]}
    assert {game.name: read_game(game.path) for game in games} == {
        name: replace(game, name=name) for name, game in names.items()
    }


def stock_list(data, monkeypatch):
    """Training games that ALFWorld's own code would play."""
    monkeypatch.setenv("ALFWORLD_DATA", str(data.parent))
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    folders = {"data_path": "train", "eval_id_data_path": "valid_seen", "eval_ood_data_path": "valid_unseen"}
    paths = {key: str(data / folder) for key, folder in folders.items()}
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
        "dataset": {**paths, "num_train_games": -1, "num_eval_games": -1},
    }
    return AlfredTWEnv(config, train_eval="train").game_files


def test_what_is_left_out_is_what_alfworld_leaves_out(copy, monkeypatch):
    split, odd = copy / "train", make_game("pick_and_place_simple", 9)
    publish(split, make_game("pick_and_place_simple", 0), solvable=False)
    publish(split, make_game("pick_and_place_simple", 1), solvable=None)
    publish(split, replace(odd, name="pick_and_place_with_movable_recep-Pen-Mug-Desk-301/x"))
    publish(split, replace(odd, name="pick_heat_then_place_in_recep-AppleSliced-None-Fridge-3/x"))
    publish(split, replace(odd, name="pick_two_obj_and_place-Pen-None-Desk-301/x", family="something_else"))
    publish(split, replace(odd, name="pick_and_place_simple-Pen-None-Desk-301/x")).unlink()
    found = published_games("train", copy)
    assert len(found) == 6
    assert sorted(stock_list(copy, monkeypatch)) == [str(game.path) for game in found]


def test_a_task_is_found_in_a_folder_that_lacks_the_other_splits(copy):
    for folder in ("valid_seen", "valid_unseen"):
        shutil.rmtree(copy / folder)
    [task, *_] = AlfWorld(dataset=str(copy)).tasks("train")
    env = AlfWorld(dataset=str(copy))  # like one in another process, which has listed nothing yet
    env.reset(seed=0, options={"task": task})
    assert env.observation.actions
    with pytest.raises(InvalidInput, match="is not in dataset"):
        env.reset(seed=0, options={"task": replace(task, id="pick-none")})


def test_missing_data_is_said_to_be_missing(copy, tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    empty = tmp_path / "empty" / "json_2.1.1"
    (empty / "valid_unseen").mkdir(parents=True)
    for path in (copy / "valid_unseen").rglob("game.tw-pddl"):
        path.unlink()
    torn = next((copy / "train").rglob("game.tw-pddl"))
    torn.write_text("{")
    for arguments, fact in (
        (("test", tmp_path / "home"), "json_2.1.1.*ALFWORLD_DATA"),
        (("test",), str(tmp_path / "home/.cache/alfworld/json_2.1.1")),
        (("train", empty), "'train'"),
        (("test", empty), "valid_unseen has 0 tasks"),
        (("test", copy), "valid_unseen has 6 tasks"),
        (("train", copy), re.escape(str(torn))),
    ):
        with pytest.raises(InvalidInput, match=fact):
            published_games(*arguments)


def test_results_name_the_games_that_were_played(data, tmp_path, monkeypatch):
    write_game(tmp_path / "test" / "game", make_game(FAMILIES[0], 1))
    made = "ALFWorld engine, self-generated games"
    for env in (AlfWorld(), AlfWorld("alfworld:all"), AlfWorld(str(tmp_path))):
        assert env.benchmark("test", 6) == made
    assert AlfWorld(scenes=(14,)).benchmark("test", 3) == f"{made}, floor plans of the training games"
    monkeypatch.setenv("ALFWORLD_DATA", str(data.parent))
    for dataset in ("alfworld:published", str(data.parent), str(data)):
        env = AlfWorld(dataset)
        assert len(env.tasks("test")) == 6
        assert env.benchmark("test", 134) == "ALFWorld valid_unseen"
        assert env.benchmark("validation", 140) == "ALFWorld valid_seen"
        assert env.benchmark("train", 6) == "ALFWorld train, 6 of 3553 games"
