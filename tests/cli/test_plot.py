from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import InvalidInput


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder in the working directory, with an equals sign in its name."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "lr=1e-3"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe("number_line/nano")))
    row = {"stage": "main", "episode_return": 0.5, "length": 4.0, "entropy": 0.5}
    rows = [{**row, "iteration": n, "success": n / 10, "env_steps": 9 * n + 9} for n in range(4)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def plot(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["plot", *arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_a_run_becomes_a_file(run: Path) -> None:
    assert plot(run.name, "--out", "x.svg") == "plot: x.svg\n"
    assert ">lr=1e-3<" in Path("x.svg").read_text()  # a folder that is there is taken at its word


def test_a_label_goes_before_a_run(run: Path) -> None:
    plot(f"our arm={run.name}", "--out", "x.svg", "--what", "return", "--x", "env_steps", "--smooth", "1")
    text = Path("x.svg").read_text()
    assert ">our arm<" in text
    assert ">Return<" in text
    assert "raw-0" not in text  # nothing was smoothed


def test_a_figure_of_the_paper_names_the_lines_itself(run: Path) -> None:
    plot(run.name, "--out", "x.svg", "--figure", "4")
    assert ">Reflect-RL (w/o CL)<" in Path("x.svg").read_text()
    with pytest.raises(InvalidInput, match="'mine'"):
        plot(f"mine={run.name}", "--out", "x.svg", "--figure", "4")


def test_a_folder_that_is_not_there_is_one_sentence(run: Path) -> None:
    with pytest.raises(InvalidInput, match="lr=1e-3x"):
        plot(f"label={run.name}x", "--out", "x.svg")
