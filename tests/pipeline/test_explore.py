"""Exploring with the players of a run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.core import InvalidInput, Turn
from reflectrl.models.builtin import make_base
from reflectrl.models.load import load_model, save_model
from reflectrl.pipeline.explore import explore, trained
from reflectrl.prompts import PromptFormat, labels

QUESTION = "Who opens the office?"
SFT_ONLY = ("rlft=null", "eval.policies=[sft]", "eval.controls=[]")
TINY = (
    "model.builtin={layers: 1, width: 16, heads: 2, vocabulary: 400, pieces: words}",
    "model.max_length=384",
    "env.options={page: 4, output: 30, listing: false}",
    "eval.env={horizon: 9}",
    "prompt.history=3",
    "players.reflector.max_new_tokens=3",
)


def recipe(*overrides: str, name: str = "auto_explore/nano") -> Recipe:
    return load_recipe(name, [*TINY, *overrides] if name == "auto_explore/nano" else overrides)


def write(run: Path, made_of: Recipe) -> Path:
    run.mkdir(exist_ok=True)
    (run / "recipe.yaml").write_text(dump_recipe(made_of), encoding="utf-8")
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without RLFT, as it is left by the stages, but untrained and without its dataset."""
    made_of = recipe(*SFT_ONLY)
    run = write(tmp_path_factory.mktemp("runs") / "run", made_of)
    menus = ["Question: who?\nFolder: /\n0. id README.md\n1. cd people\nAction:\n"]
    section = made_of.model
    make_base(section, run / "base", corpus=menus, labels=labels("numbers", 10), seed=0)
    lm = load_model(run / "base", section, trainable=False)
    for player in ("reflector", "policy-sft"):
        save_model(lm, run / player)
    return run


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "office"
    (folder / "people").mkdir(parents=True)
    for name in ("README.md", "people/ada.md", "people/bob.md"):
        (folder / name).write_text(f"{name}\n")
    return folder


def watch(repository: Path, run: Path, *, seed: int = 0, greedy: bool = True, **options: int) -> list[Turn]:
    turns: list[Turn] = []
    explore(str(repository), QUESTION, trained(run, greedy=greedy), options=options, seed=seed, show=turns.append)
    return turns


def test_a_run_plays_with_the_prompts_and_options_that_it_was_trained_with(run: Path) -> None:
    players = trained(run)
    assert players.layout == PromptFormat(history=3, labels="numbers")
    assert players.options == {"page": 4, "output": 30, "listing": False, "horizon": 9}
    assert players.who == f"policy-sft of {run}"


def test_both_players_of_a_run_play_anywhere_although_its_dataset_is_gone(run: Path, repository: Path) -> None:
    turns = watch(repository, run)
    assert all(turn.reflection is not None for turn in turns)
    assert all(sum(turn.decision.choice.probabilities) == pytest.approx(1, abs=1e-5) for turn in turns)
    assert all(
        turn.decision.choice.probabilities[turn.decision.choice.index] == max(turn.decision.choice.probabilities)
        for turn in turns
    )
    assert watch(repository, run) == turns
    assert len(turns) == 9 or turns[-1].decision.action.startswith("id ")


def test_a_policy_may_draw_its_commands_by_a_seed(run: Path, repository: Path) -> None:
    drawn = [[turn.decision.action for turn in watch(repository, run, greedy=False, seed=seed)] for seed in range(4)]
    assert drawn[2] == [turn.decision.action for turn in watch(repository, run, greedy=False, seed=2)]
    assert len({tuple(actions) for actions in drawn}) > 1


def test_the_command_shows_a_run_s_reflections_and_probabilities(run: Path, repository: Path) -> None:
    done = CliRunner().invoke(app, ["explore", str(repository), QUESTION, "--run", str(run), "--steps", "2"])
    assert f"Players: policy-sft of {run}\n\nStep 1\n  Folder: /\n  Reflection:" in done.stdout
    chances = [line.split("%")[0] for line in done.stdout.partition("Menu:\n")[2].splitlines()[:3]]
    assert sum(map(int, chances)) == pytest.approx(100, abs=2)
    assert chances == sorted(chances, key=int, reverse=True)


def test_names_that_are_too_long_for_the_model_are_cut_in_its_menu_only(run: Path, repository: Path) -> None:
    names = [f"{number}{'xyz' * 28}.md" for number in range(2)]
    for name in names:
        (repository / name).write_text("x")
    turns = watch(repository, run)
    assert {f"cat {name}" for name in names} <= set(turns[0].menu)
    assert turns[0].decision.action in turns[0].menu


def test_a_question_that_is_too_long_for_the_model_is_refused_with_a_remedy(run: Path, repository: Path) -> None:
    with pytest.raises(InvalidInput, match="--page"):
        explore(str(repository), "xyz?" * 200, trained(run), options={}, seed=0)


def test_a_run_that_goes_on_to_rlft_plays_with_its_last_policy(run: Path, tmp_path: Path) -> None:
    later = tmp_path / "later"
    shutil.copytree(run, later)
    write(later, recipe())
    assert trained(later).who == f"policy-sft of {later}"
    shutil.copytree(later / "policy-sft", later / "policy")
    assert trained(later).who == f"policy of {later}"


def test_a_run_before_sft_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="reflectrl sft"):
        trained(write(tmp_path / "run", recipe(*SFT_ONLY)))


def test_a_run_of_another_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'dangerous_taxi'"):
        trained(write(tmp_path / "run", recipe(name="dangerous_taxi/nano")))


def test_an_expert_who_cannot_know_the_answer_is_refused_as_a_reflector(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput):
        trained(write(tmp_path / "run", recipe("players.reflector.player=expert")))


@pytest.mark.parametrize("kind", ["none", "self"])
def test_runs_of_the_ablations_play_too(kind: str, run: Path, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    shutil.rmtree(other / "reflector")
    write(other, recipe(*SFT_ONLY, f"players.reflector.player={kind}"))
    assert {turn.reflection is None for turn in watch(repository, other)} == {kind == "none"}
