from __future__ import annotations

from pathlib import Path

import pytest
from command_line import reflectrl, refused
from run_folders import iteration

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core.jsonl import write_jsonl


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder in the working directory, with an equals sign in its name."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "lr=1e-3"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe("number_line/nano")))
    write_jsonl(folder / "metrics.jsonl", [iteration(number) for number in range(4)])
    return folder


def plot(*arguments: str) -> str:
    done = reflectrl("plot", *arguments, "--out", "x.svg")
    assert (done.code, done.out, done.err) == (0, "plot: x.svg\n", "")
    return Path("x.svg").read_text()


@pytest.mark.slow
def test_runs_become_lines_with_labels_of_their_own_or_of_a_figure(run: Path) -> None:
    assert ">lr=1e-3<" in plot(run.name)  # an existing folder takes precedence
    text = plot(f"our arm={run.name}", "--what", "return", "--x", "env_steps", "--smooth", "1")
    assert ">our arm<" in text
    assert ">Return<" in text
    assert "raw-0" not in text  # nothing was smoothed
    assert ">Reflect-RL (w/o CL)<" in plot(run.name, "--figure", "4")
    assert "'mine'" in refused("plot", f"mine={run.name}", "--out", "x.svg", "--figure", "4")
    twice = (f"mine={run.name}", f"yours={Path().resolve() / run.name}")
    assert "as 'mine' and as 'yours'" in refused("plot", *twice, "--out", "x.svg")
    assert "without a label" in refused("plot", f"={run.name}", "--out", "x.svg")
    assert "lr=1e-3x" in refused("plot", f"label={run.name}x", "--out", "x.svg")
