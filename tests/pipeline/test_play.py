"""``reflectrl play`` with the players of a run folder, and the choice of environment and task."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from trained_runs import TrainedRuns, small_recipe
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import dump_recipe
from reflectrl.core import InvalidInput, Trajectory, make_env, register_env
from reflectrl.data_gen.rows import read_samples
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.live_play import Game, choose_episodes, play_episode, trained


class WideMenus(NumberLine):
    """Number line whose longest menu may have more actions."""

    name = "wide_menus"

    def __init__(self, actions: int = 2) -> None:
        super().__init__(size=4)
        self.max_actions = actions


register_env(WideMenus.name, WideMenus)


GREEDY = "the most probable actions"


@pytest.fixture(scope="module")
def run(trained_run: TrainedRuns) -> Path:
    return trained_run()


def changed(run: Path, to: Path, *overrides: str) -> Path:
    """Copy the players of ``run`` into a folder with another recipe."""
    for player in ("base", "reflector", "policy"):
        shutil.copytree(run / player, to / player)
    (to / "recipe.yaml").write_text(dump_recipe(small_recipe(*overrides)), encoding="utf-8")
    return to


def played(game: Game, *, task: str = "0-to-7", seed: int = 0) -> Trajectory:
    return play_episode(game, choose_episodes(game.env, task=task, seed=seed)[0], lambda _: None)


def test_a_run_plays_its_own_environment(run: Path) -> None:
    game = trained(run, None, {})
    assert (game.header.env, game.header.options, game.who) == (
        "number_line",
        {"size": 8},
        f"policy of {run}, {GREEDY}",
    )
    assert game.header.prompt == small_recipe().prompt.layout(game.env.instructions)
    trajectory = played(game)
    assert all(turn.reflection is not None for turn in trajectory.turns)
    assert all(sum(turn.decision.choice.probabilities) == pytest.approx(1, abs=1e-5) for turn in trajectory.turns)
    assert played(trained(run, "number_line", {})) == trajectory
    other = trained(run, None, {"size": 6}, policy="policy-sft")
    assert (other.env.horizon, other.header.options, other.who) == (6, {"size": 6}, f"policy-sft of {run}, {GREEDY}")


def test_a_policy_may_draw_by_the_seed(run: Path) -> None:
    game = trained(run, None, {}, policy="policy-sft", greedy=False)
    drawn = [played(game, seed=seed).actions for seed in range(6)]
    assert drawn == [played(game, seed=seed).actions for seed in range(6)]
    assert len(set(drawn)) > 1


def test_the_command_plays_a_run_without_a_name_and_saves_its_episodes(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    done = CliRunner().invoke(app, ["play", "--run", str(run), "--sample", "--episodes", "12", "--save", str(path)])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        f"Environment: number_line size=8\nPlayer: policy of {run}, sampled actions\n"
        "Rules: Reach the target by adding or subtracting one at a time.\n\nEpisode 1 of 12: "
    )
    header, samples = read_samples(path)
    assert header == trained(run, None, {}).header
    assert len({sample.seed for sample in samples}) == done.stdout.count("\nSaved: ") > 0


def test_what_a_run_cannot_play_is_refused(run: Path, tmp_path: Path) -> None:
    wide = changed(run, tmp_path / "wide", "env={name: wide_menus, options: {actions: 2}}")
    assert trained(wide, None, {}).env.max_actions == 2
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.yaml").write_text(dump_recipe(small_recipe()), encoding="utf-8")
    for folder, name, options, fact in (
        (run, "dangerous_taxi", {}, "'number_line'.*'dangerous_taxi'"),
        (wide, None, {"actions": 3}, "up to 3 actions.* for 2"),
        (tmp_path / "begun", None, {}, "reflectrl sft"),
        (tmp_path / "gone", None, {}, "gone"),
    ):
        with pytest.raises(InvalidInput, match=fact):
            trained(folder, name, options)
    with pytest.raises(InvalidInput, match="'sft'.* policy, policy-sft"):
        trained(run, None, {}, policy="sft")


@pytest.mark.slow
def test_episodes_of_a_run_without_reflections_are_saved_without_words(run: Path, tmp_path: Path) -> None:
    other = changed(run, tmp_path / "other", "players.reflector.player=none", "eval.controls=[]")
    new = tmp_path / "new.jsonl"
    shown = CliRunner().invoke(app, ["play", "--run", str(other), "--episodes", "8", "--save", str(new)]).stdout
    assert "Reflection" not in shown
    assert shown.count("Saved: ") + shown.count("Not saved: ") == 8
    samples = read_samples(new)[1] if new.exists() else []
    assert {sample.reflection for sample in samples} <= {""}
    assert bool(samples) == ("Saved: " in shown.replace("Not saved: ", ""))


def test_tasks_are_drawn_by_the_seed() -> None:
    env = make_env("number_line", size=4)
    train = [task.id for task in env.split_tasks("train")]
    drawn = [[one.task.id for one in choose_episodes(env, count=9, seed=seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[0][: len(train)]) == sorted(train)
    assert drawn[0][len(train) :] == drawn[0][: 9 - len(train)]
    assert len({one.seed for one in choose_episodes(env, count=9)}) == 9


def test_a_task_is_found_in_any_split() -> None:
    env = make_env("dangerous_taxi")
    for split in env.splits:
        task = env.any_tasks(split)[0]
        assert [one.task for one in choose_episodes(env, task=task.id, count=2)] == [task, task]
        assert choose_episodes(env, split=split)[0].task in env.any_tasks(split)
    with pytest.raises(InvalidInput, match="'unseen'.*'unseen_destination'"):
        choose_episodes(env, task=task.id, split="unseen")


def test_a_ledger_names_files_that_changed_after_they_were_read(tmp_path: Path) -> None:
    shown = tmp_path / "shown.jsonl"
    made_of, folder = small_recipe(f"data.demonstrations=['{shown}']"), RunFolder(tmp_path / "run")
    shown.write_text("first")
    with folder.locked():
        folder.begin(made_of, "gen-data")
        shown.write_text("second")
        folder.check(made_of, "gen-data")  # killed, and started again with the files that exist now
        folder.begin(made_of, "gen-data")
        folder.finish(made_of, "gen-data")
        assert folder.changed("gen-data") == []
        shown.write_text("more")
        assert str(shown) in folder.done_with("gen-data")
        folder.check(made_of, "gen-data")
        shown.unlink()
        assert folder.done_with("gen-data") == "same inputs"
