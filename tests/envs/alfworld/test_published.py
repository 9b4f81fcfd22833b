"""The published layout, as a fixture made of our own games: what ALFWorld would play of it, and how it is spoken."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import pytest
from old_alfworld import older

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.types import SPLITS
from reflectrl.endpoint.account import Account
from reflectrl.envs.alfworld import AlfWorld
from reflectrl.envs.alfworld.catalogue import published_games
from reflectrl.envs.alfworld.games import FAMILIES, make_game, make_games, read_game, write_game
from reflectrl.pipeline.evaluate import run_eval
from reflectrl.pipeline.folder import RunFolder
from reflectrl.report import print_table
from reflectrl.rollout.results import read_results

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


def test_a_published_game_reads_as_it_was_written(data):
    for split in ("train", "test"):
        names = {f"{game.name.partition('/')[0]}/{TRIAL}": game for game in made(split)}
        expected = {name: replace(game, name=name) for name, game in names.items()}
        assert {game.name: read_game(game.path) for game in published_games(split, data)} == expected


def test_missing_data_is_said_to_be_missing(data, tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    empty = tmp_path / "empty" / "json_2.1.1"
    (empty / "valid_unseen").mkdir(parents=True)
    for arguments, fact in (
        (("test", tmp_path / "home"), "json_2.1.1.*ALFWORLD_DATA"),
        (("test",), str(tmp_path / "home/.cache/alfworld/json_2.1.1")),
        (("train", empty), "'train'"),
        (("test", empty), "valid_unseen"),
        (("valid_unsen", data), "'valid_unseen'"),
    ):
        with pytest.raises(InvalidInput, match=fact):
            published_games(*arguments)
    for path in (data / "valid_unseen").rglob("game.tw-pddl"):
        path.unlink()
    with pytest.raises(InvalidInput, match="6 tasks"):
        published_games("test", data)
    torn = next(iter((data / "train").rglob("game.tw-pddl")))
    torn.write_text("{")
    with pytest.raises(InvalidInput, match=re.escape(str(torn))):
        published_games("train", data)


# ---- what results say of themselves ----------------------------------------------------------------------------------


def test_games_that_were_made_here_are_called_self_generated(tmp_path):
    for split in SPLITS:
        write_game(tmp_path / split / "game", make_game(FAMILIES[0], 1))
        for env in (AlfWorld(), AlfWorld("alfworld:all"), AlfWorld(str(tmp_path))):
            assert env.benchmark(split, 6) == "ALFWorld engine, self-generated games"
        assert AlfWorld(scenes=(14,)).benchmark(split, 3) == (
            "ALFWorld engine, self-generated games, floor plans of the training games"
        )


def test_published_games_are_called_by_their_split_and_by_how_many_were_played(data, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(data.parent))
    assert published_games("test") == published_games("test", data)
    for dataset in ("alfworld:published", str(data.parent), str(data)):
        env = AlfWorld(dataset)
        assert len(env.tasks("test")) == 6
        assert env.benchmark("test", 4) == "ALFWorld valid_unseen, 4 of 134 games"
        assert env.benchmark("test", 134) == "ALFWorld valid_unseen"
        assert env.benchmark("validation", 140) == "ALFWorld valid_seen"
        assert env.benchmark("train", 6) == "ALFWorld train, 6 of 3553 games"


def test_an_evaluation_says_what_was_played_in_its_rows_its_last_words_and_its_table(data, tmp_path, capsys):
    dataset = [f"env.options.dataset={data}", "env.options.scenes=null"]
    recipe = load_recipe("alfworld/nano", [*dataset, "eval.policies=[random, expert]", "eval.episodes=3"])
    run = RunFolder(tmp_path / "nano")
    run.path.mkdir()
    run.begin(recipe, "eval")
    notes = []
    run_eval(recipe, run, Account(), lambda _done, _total, note: notes.append(note), notes.append)
    played = "ALFWorld valid_unseen, 3 of 134 games"
    assert [row.benchmark for row in read_results(run / "eval.jsonl")] == [played] * 2
    assert notes[-1].endswith(f"of 3 episodes; {played}, split test")
    print_table([run.path])
    assert capsys.readouterr().out.endswith(f"\nPlayed on {played}, split test.\n")
