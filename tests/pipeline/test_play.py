"""Playing with the players of a run folder, and what is played."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.core import InvalidInput, Trajectory, make_env, register_env
from reflectrl.data_gen.samples import read_samples
from reflectrl.envs.number_line import NumberLine
from reflectrl.models.builtin import make_base
from reflectrl.models.load import load_model, save_model
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.play import Game, choose_episodes, expert, play_episode, trained
from reflectrl.prompts import PromptFormat, labels

TINY = (
    "model.builtin={layers: 1, width: 16, heads: 2, vocabulary: 400, pieces: words}",
    "model.max_length=96",
    "prompt={history: 3, labels: letters, instructions: true}",
    "players.reflector.max_new_tokens=3",
)


class WideMenus(NumberLine):
    """With so many actions on the longest menu."""

    name = "wide_menus"

    def __init__(self, actions: int = 2) -> None:
        super().__init__(size=4)
        self.max_actions = actions


register_env(WideMenus.name, WideMenus)


def recipe(*overrides: str) -> Recipe:
    return load_recipe("number_line/nano", [*TINY, *overrides])


def write(run: Path, made_of: Recipe) -> Path:
    run.mkdir(exist_ok=True)
    (run / "recipe.yaml").write_text(dump_recipe(made_of), encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as the stages leave it, but untrained."""
    made_of = recipe()
    run = write(tmp_path_factory.mktemp("runs") / "run", made_of)
    rows = [
        "Past: none\nNumber 3, target 4.\nReflection: The target is higher.\nA. add one\nB. subtract one\nAction:\n"
    ]
    make_base(made_of.model, run / "base", corpus=rows, labels=labels("letters", 2), seed=0)
    lm = load_model(run / "base", made_of.model, trainable=False)
    for player in ("reflector", "policy-sft", "policy"):
        save_model(lm, run / player)
    return run


def played(game: Game, *, task: str = "0-to-7", seed: int = 0) -> Trajectory:
    return play_episode(game, choose_episodes(game.env, task=task, seed=seed)[0], lambda _: None)


def test_a_run_plays_its_own_environment_with_the_prompts_that_it_was_trained_with(run: Path) -> None:
    game = trained(run, None, {})
    assert (game.header.env, game.header.options, game.who) == ("number_line", {"size": 8}, f"policy of {run}")
    assert game.header.prompt == PromptFormat(game.env.instructions, history=3, labels="letters")
    assert game.env.horizon == 8
    trajectory = played(game)
    assert all(turn.reflection is not None for turn in trajectory.turns)
    assert all(sum(turn.decision.choice.probabilities) == pytest.approx(1, abs=1e-5) for turn in trajectory.turns)
    assert played(trained(run, "number_line", {})) == trajectory


def test_a_run_may_play_with_other_options(run: Path) -> None:
    game = trained(run, None, {"size": 6})
    assert (game.env.horizon, game.header.options) == (6, {"size": 6})
    assert len(played(game, task="0-to-5").turns) <= 6


def test_the_policy_before_rlft_can_be_asked_for(run: Path) -> None:
    assert trained(run, None, {}, policy="policy-sft").who == f"policy-sft of {run}"
    with pytest.raises(InvalidInput, match="policy 'sft' was asked for; Known: policy, policy-sft."):
        trained(run, None, {}, policy="sft")


def test_a_policy_may_draw_by_the_seed(run: Path) -> None:
    game = trained(run, None, {}, greedy=False)
    drawn = [played(game, seed=seed).actions for seed in range(6)]
    assert drawn == [played(game, seed=seed).actions for seed in range(6)]
    assert len(set(drawn)) > 1


def test_the_command_plays_a_run_without_a_name(run: Path) -> None:
    done = CliRunner().invoke(app, ["play", "--run", str(run), "size=5", "--task", "0-to-4"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(
        f"Environment: number_line size=5\nPlayer: policy of {run}\n\nEpisode 1 of 1: 0-to-4\n"
    )
    assert "\n    100%  ████████████████████  A. add one\n" in done.stdout


def test_episodes_of_a_run_can_be_saved(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    arguments = ["--run", str(run), "--sample", "--episodes", "12", "--save", str(path)]
    done = CliRunner().invoke(app, ["play", *arguments])
    assert done.exit_code == 0, done.output
    header, samples = read_samples(path)
    assert header == trained(run, None, {}).header
    assert len({sample.seed for sample in samples}) == done.stdout.count("\nSaved: ") > 0


def test_a_run_of_another_environment_is_refused(run: Path) -> None:
    with pytest.raises(InvalidInput, match="was trained on 'number_line', and 'dangerous_taxi' is to be played"):
        trained(run, "dangerous_taxi", {})


def test_options_that_a_run_does_not_know_labels_for_are_refused(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    write(other, recipe("env={name: wide_menus, options: {actions: 2}}"))
    assert trained(other, None, {}).env.max_actions == 2
    with pytest.raises(
        InvalidInput, match=r"have up to 3 actions, but policy of .* knows labels for 2; choose options"
    ):
        trained(other, None, {"actions": 3})


def test_an_unfinished_run_and_no_run_at_all_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is not finished, it has no policy yet; run `reflectrl sft`"):
        trained(write(tmp_path / "run", recipe()), None, {})
    with pytest.raises(InvalidInput, match="is no run folder"):
        trained(tmp_path / "gone", None, {})


def test_a_run_without_reflections_plays_but_teaches_nobody(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    write(other, recipe("players.reflector.player=none", "eval.controls=[]"))
    done = CliRunner().invoke(app, ["play", "--run", str(other)])
    assert "Reflection" not in done.stdout
    refused = CliRunner().invoke(app, ["play", "--run", str(other), "--save", str(tmp_path / "new.jsonl")])
    assert f"the player (policy of {other}) does not reflect" in str(refused.exception)


def test_tasks_are_drawn_by_the_seed_and_each_comes_once_before_any_comes_again() -> None:
    env = make_env("number_line", size=4)
    train = [task.id for task in env.split_tasks("train")]
    drawn = [[one.task.id for one in choose_episodes(env, count=9, seed=seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sorted(drawn[0][: len(train)]) == sorted(train)
    assert drawn[0][len(train) :] == drawn[0][: 9 - len(train)]
    assert len({one.seed for one in choose_episodes(env, count=9)}) == 9


def test_a_task_is_found_in_any_split() -> None:
    env = make_env("number_line", size=4)
    for split in ("train", "validation", "test"):
        task = env.split_tasks(split)[0]
        assert [one.task for one in choose_episodes(env, task=task.id, count=2)] == [task, task]


def test_tasks_of_a_further_split_are_found_and_drawn() -> None:
    env = make_env("dangerous_taxi")
    task = env.split_tasks("unseen_destination")[0]
    assert [one.task for one in choose_episodes(env, task=task.id)] == [task]
    assert choose_episodes(env, split="unseen_destination")[0].task in env.split_tasks("unseen_destination")
    with pytest.raises(InvalidInput, match=r"split 'unseen' is unknown; did you mean 'unseen_destination'\?"):
        choose_episodes(env, task=task.id, split="unseen")


def test_the_expert_plays_every_environment_that_has_one() -> None:
    assert played(expert("number_line", {"size": 8})).success


def test_a_ledger_tells_files_that_changed_after_they_were_read(tmp_path: Path) -> None:
    shown = tmp_path / "shown.jsonl"
    made_of, folder = recipe(f"data.demonstrations=['{shown}']"), RunFolder(tmp_path / "run")
    shown.write_text("first")
    with folder.locked():
        folder.begin(made_of, "gen-data")
        shown.write_text("mended")
        folder.check(made_of, "gen-data")  # killed, and begun again with what is there now
        folder.begin(made_of, "gen-data")
        folder.finish(made_of, "gen-data", wall_seconds=1.0, cpu_seconds=1.0)
        assert folder.done_with("gen-data") == "same inputs"
        shown.write_text("more")
        assert folder.done_with("gen-data") == (
            f"with {shown} as it was then; choose another --run to use it as it is now"
        )
        folder.check(made_of, "gen-data")
        shown.unlink()
        assert folder.done_with("gen-data") == "same inputs"
