"""Exploring with the players of a run folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import Recipe, dump_recipe, load_recipe
from reflectrl.core import InvalidInput, Turn
from reflectrl.lm.builtin import make_base
from reflectrl.lm.load import load_model, save_model
from reflectrl.pipeline.live_explore import expert, explore, trained
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
    """A run folder as after gen-data and SFT, but with untrained players and without its dataset."""
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


def test_a_run_explores_without_its_dataset(run: Path, repository: Path) -> None:
    players = trained(run)
    assert players.layout == PromptFormat(history=3, labels="numbers")
    assert players.options == {"page": 4, "output": 30, "listing": False, "horizon": 9}
    assert players.who == f"policy-sft of {run}"
    turns = watch(repository, run)
    for turn in turns:
        chances = turn.decision.choice.probabilities
        assert turn.reflection is not None
        assert sum(chances) == pytest.approx(1, abs=1e-5)
        assert chances[turn.decision.choice.index] == max(chances)
    assert watch(repository, run) == turns
    assert len(turns) == 9 or turns[-1].decision.action.startswith("id ")


def test_the_tools_of_a_run_s_recipe_are_there_in_any_repository(tmp_path: Path, repository: Path) -> None:
    searching = recipe(*SFT_ONLY, "env.options={page: 4, tools: [search]}")
    run = write(tmp_path / "searching", searching)
    (run / "policy-sft").mkdir()
    options = trained(run).options
    assert options["tools"] == ["search"]
    turns: list[Turn] = []
    answer = explore(str(repository), "Who is Ada?", expert("people/ada.md"), options=options, show=turns.append)
    assert [turn.decision.action for turn in turns] == ["search for ada", "id /people/ada.md"]
    assert answer == "people/ada.md"


def test_the_command_shows_a_run_s_reflections_and_probabilities(run: Path, repository: Path) -> None:
    done = CliRunner().invoke(app, ["explore", str(repository), QUESTION, "--run", str(run), "--steps", "2"])
    assert f"Players: policy-sft of {run}\n\nStep 1\n  Folder: /\n  Reflection:" in done.stdout
    chances = [line.split("%")[0] for line in done.stdout.partition("Menu:\n")[2].splitlines()[:3]]
    assert sum(map(int, chances)) == pytest.approx(100, abs=2)
    assert chances == sorted(chances, key=int, reverse=True)


def test_long_names_are_cut_and_long_questions_refused(run: Path, repository: Path) -> None:
    names = [f"{number}{'xyz' * 28}.md" for number in range(2)]
    for name in names:
        (repository / name).write_text("x")
    [turn] = watch(repository, run, horizon=1)
    assert {f"cat {name}" for name in names} <= set(turn.menu)
    assert turn.decision.action in turn.menu
    with pytest.raises(InvalidInput, match="--page"):
        explore(str(repository), "xyz?" * 200, trained(run), options={}, seed=0)


@pytest.mark.parametrize(
    ("made_of", "fact"),
    [
        (recipe(*SFT_ONLY), "reflectrl sft"),
        (recipe(name="dangerous_taxi/nano"), "'dangerous_taxi'"),
        (recipe("players.reflector.player=expert"), "expert"),  # it does not know the answer here
    ],
)
def test_a_run_that_cannot_play_here_is_refused(tmp_path: Path, made_of: Recipe, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        trained(write(tmp_path / "run", made_of))


@pytest.mark.parametrize("kind", ["none", "self"])
def test_runs_of_the_ablations_play_too(kind: str, run: Path, repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    shutil.rmtree(other / "reflector")
    write(other, recipe(*SFT_ONLY, f"players.reflector.player={kind}"))
    assert {turn.reflection is None for turn in watch(repository, other, horizon=2)} == {kind == "none"}
