"""The published layout, as a fixture made of our own games: what ALFWorld would play of it, and how it is spoken."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
from old_alfworld import older

from reflectrl.core import InvalidInput
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.games import FAMILIES, make_game, make_games, read_game, write_game
from reflectrl.envs.alfworld.published import label, published_games

TRIAL = "trial_T20190907_060234_011675"


def made(split):
    """A game of each family, in small houses, which the engine translates fast."""
    return make_games("all", split, 6, scenes=(14, 29, 304, 316, 419))


def publish(split, game, trial=TRIAL):
    """Write a game as ALFWorld does, who knows nothing of a name in the file."""
    path = write_game(split / game.name.partition("/")[0] / trial, game)
    change(path.with_name("traj_data.json"), lambda data: data.pop("name"))
    return path


def change(path, edit):
    data = json.loads(path.read_text())
    edit(data)
    path.write_text(json.dumps(data))


@pytest.fixture
def data(tmp_path):
    """Six families in each split, the older dialect in valid_seen."""
    root = tmp_path / "json_2.1.1"
    for split, own, said in (
        ("train", "train", lambda game: game),
        ("valid_seen", "validation", older),
        ("valid_unseen", "test", lambda game: game),
    ):
        for game in made(own):
            publish(root / split, said(game))
    return root


@pytest.mark.parametrize(
    ("ours", "theirs"), [("train", "train"), ("validation", "valid_seen"), ("test", "valid_unseen")]
)
def test_a_split_is_known_by_both_names_and_sorted(data, ours, theirs):
    games = published_games(ours, data)
    assert games == published_games(theirs, data.parent)
    assert [game.name for game in games] == sorted(game.name for game in games)
    assert {game.family for game in games} == set(FAMILIES)
    assert {game.path.relative_to(data).parts[0] for game in games} == {theirs}


def test_the_folder_is_found_by_its_variable(data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(data.parent))
    assert published_games("test") == published_games("test", data)


def test_a_published_game_reads_as_it_was_written(data):
    for split in ("train", "test"):
        read = {game.name: read_game(game.path) for game in published_games(split, data)}
        assert read == {
            name: replace(game, name=name)
            for game in made(split)
            for name in [f"{game.name.partition('/')[0]}/{TRIAL}"]
        }


def test_both_dialects_are_told_apart(data):
    said = {
        split: {
            game.put("mug 1", "desk 2") for game in map(read_game, [one.path for one in published_games(split, data)])
        }
        for split in ("valid_seen", "valid_unseen")
    }
    assert said == {"valid_seen": {"put mug 1 in/on desk 2"}, "valid_unseen": {"move mug 1 to desk 2"}}
    (seen, *_), (unseen, *_) = published_games("valid_seen", data), published_games("valid_unseen", data)
    assert (read_game(seen.path).dialect, read_game(unseen.path).dialect) == ("put", "move")


@pytest.mark.parametrize(
    ("split", "put"), [("validation", r"put \w+ \d+ in/on \w+ \d+"), ("test", r"move \w+ \d+ to \w+ \d+")]
)
def test_the_expert_wins_every_published_game_in_its_own_dialect(data, split, put):
    env = AlfWorld(str(data))
    tasks = env.tasks(split)
    assert [task.id for task in tasks] == [game.name for game in published_games(split, data)]
    said = {}
    for task in tasks:
        _, info = env.reset(seed=0, options={"task": task})
        terminated = truncated = False
        commands = []
        while not (terminated or truncated):
            commands.append(env.expert())
            _, reward, terminated, truncated, info = env.step(commands[-1])
        assert (info["success"], reward) == (True, 1.0)
        said[task.id.partition("-")[0]] = commands
    assert set(said) == set(FAMILIES)
    for family, commands in said.items():
        puts = [command for command in commands if re.fullmatch(put, command)]
        assert len(puts) == {"look_at_obj_in_light": 0, "pick_two_obj_and_place": 2}.get(family, 1)


def test_a_family_can_be_played_alone(data):
    env = AlfWorld(str(data), families=["pick_two_obj_and_place"])
    assert [task.id.partition("-")[0] for task in env.tasks("test")] == ["pick_two_obj_and_place"]


def stock_list(data, split, monkeypatch):
    """What ALFWorld's own code would play."""
    monkeypatch.setenv("ALFWORLD_DATA", str(data.parent))
    from alfworld.agents.environment.alfred_tw_env import AlfredTWEnv

    folders = {"train": "data_path", "valid_seen": "eval_id_data_path", "valid_unseen": "eval_ood_data_path"}
    config = {
        "env": {"goal_desc_human_anns_prob": 0, "task_types": [1, 2, 3, 4, 5, 6]},
        "dataset": {
            **{key: str(data / folder) for folder, key in folders.items()},
            "num_train_games": -1,
            "num_eval_games": -1,
        },
    }
    names = {"train": "train", "valid_seen": "eval_in_distribution", "valid_unseen": "eval_out_of_distribution"}
    return AlfredTWEnv(config, train_eval=names[split]).game_files


def test_what_is_left_out_is_what_alfworld_leaves_out(data, monkeypatch):
    split = data / "train"
    kept = published_games("train", data)
    for number, edit in enumerate(
        (
            lambda game: game.update(solvable=False),
            lambda game: game.update(solvable=None),
            lambda game: game.pop("solvable"),
        )
    ):
        change(publish(split, make_game("pick_and_place_simple", number)), edit)
    odd = make_game("pick_and_place_simple", 9)
    publish(split, replace(odd, name="pick_and_place_with_movable_recep-Pen-Mug-Desk-301/x"))
    publish(split, replace(odd, name="pick_heat_then_place_in_recep-AppleSliced-None-Fridge-3/x"))
    other = publish(split, replace(odd, name="pick_two_obj_and_place-Pen-None-Desk-301/x"))
    change(other.with_name("traj_data.json"), lambda task: task.update(task_type="something_else"))
    publish(split, replace(odd, name="pick_and_place_simple-Pen-None-Desk-301/x")).unlink()
    moved = shutil.copytree(data, data.parent / "again" / "json_2.1.1")
    found = published_games("train", moved)
    assert [game.name for game in found] == [game.name for game in kept]
    assert sorted(stock_list(moved, "train", monkeypatch)) == [str(game.path) for game in found]


def test_a_result_names_the_split_and_what_part_of_it(data):
    assert label("test", len(published_games("test", data))) == "ALFWorld valid_unseen, 6 of 134 games"
    assert label("valid_unseen", 134) == "ALFWorld valid_unseen"


def test_missing_data_is_said_to_be_missing(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"are not in .*json_2.1.1; run alfworld-download, or set ALFWORLD_DATA"):
        published_games("test", tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match=rf"are not in {tmp_path}/.cache/alfworld/json_2.1.1"):
        published_games("test")
    (tmp_path / "json_2.1.1").mkdir()
    with pytest.raises(InvalidInput, match=r"json_2.1.1 has no folder 'valid_unseen'; run alfworld-download"):
        published_games("test", tmp_path)
    (tmp_path / "json_2.1.1" / "valid_unseen").mkdir()
    with pytest.raises(InvalidInput, match=r"valid_unseen has no tasks; expected game.tw-pddl beside each"):
        published_games("test", tmp_path)


def test_tasks_that_were_never_made_into_games_are_said_to_be(data):
    for path in (data / "valid_unseen").rglob("game.tw-pddl"):
        path.unlink()
    with pytest.raises(InvalidInput, match=r"has 6 tasks but no game that can be played; .* run alfworld-download"):
        published_games("test", data)


def test_an_unknown_split_is_refused(data):
    with pytest.raises(InvalidInput, match=r"split 'valid_unsen' of ALFWorld is unknown; did you mean 'valid_unseen'"):
        published_games("valid_unsen", data)


def test_a_file_that_is_no_json_is_named(data):
    path = next(iter((data / "train").rglob("game.tw-pddl")))
    path.write_text("{")
    with pytest.raises(InvalidInput, match=re.escape(f"{path} cannot be read")):
        published_games("train", data)
