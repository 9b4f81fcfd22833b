"""The command line: its help, completion and small commands. Its refusals are in test_sentences."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from command_line import reflectrl, refused

import reflectrl as package
from reflectrl.cli.app import app
from reflectrl.config import load_recipe, recipe_names


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_help_groups_every_command_under_a_heading() -> None:
    done = reflectrl("--help")
    sections = [section.splitlines() for section in done.out.split("\n\n")[2:]]
    listed = {heading: [line.split()[0] for line in lines if line[2] != " "] for heading, *lines in sections}
    assert listed.pop("Options:") == ["--version", "--install-completion", "--show-completion", "--help"]
    assert listed["Stages of a run:"] == ["train", "run", "tune", "gen-data", "sft", "rlft", "eval", "claims"]
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # of a group
    assert sorted(name for names in listed.values() for name in names) == sorted(commands)
    assert len(listed) == 5
    assert "..." not in done.out.partition("Options:")[2]


def test_help_imports_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "openai", "pydantic", "fastapi")
    code = (
        "import sys; from reflectrl.cli import main\n"
        f"try: main()\nexcept SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("gen", ["gen-data"]),
        ("run --recipe number_line/nano_r", ["number_line/nano_reinforce"]),
        ("export runs/l", ["runs/later"]),
        ("eval --runs elsewhere --run t", ["third"]),
        ("check-env number", ["number_line"]),
        ("serve nowhere", []),
    ],
)
def test_the_shell_completes_names(line: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for run in ("runs/earlier", "runs/later", "elsewhere/third"):
        Path(run).mkdir(parents=True)
        (Path(run) / "recipe.yaml").touch()
    (Path("runs") / "no-run").mkdir()
    monkeypatch.setenv("_REFLECTRL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"reflectrl {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split())))
    assert reflectrl().out.split() == found


def test_version() -> None:
    for argument in ("version", "--version"):
        assert reflectrl(argument).out == f"reflectrl {package.__version__}\n"


@pytest.mark.slow
def test_recipes_are_listed_shown_and_copied() -> None:
    assert [line.split()[0] for line in reflectrl("recipes", "ls").out.splitlines()] == recipe_names()
    Path("shown.yaml").write_text(reflectrl("recipes", "show", "dangerous_taxi/nano_ppo", "seed=3").out)
    assert load_recipe("shown.yaml") == load_recipe("dangerous_taxi/nano_ppo", ["seed=3"])
    for copy, arguments in {"nano_ppo.yaml": (), "mine.yaml": ("mine.yaml",)}.items():
        assert reflectrl("recipes", "cp", "dangerous_taxi/nano_ppo", *arguments).out == f"{copy}\n"
        original = load_recipe("dangerous_taxi/nano_ppo")
        name = "mine" if arguments else original.name
        assert load_recipe(copy) == original.model_copy(update={"name": name})
        assert f"# reflectrl run --recipe {copy}\n" in Path(copy).read_text()
        Path(copy).write_text("mine")
        assert copy in refused("recipes", "cp", "dangerous_taxi/nano_ppo", *arguments)
        assert Path(copy).read_text() == "mine"
    reflectrl("recipes", "cp", "dangerous_taxi/nano_ppo", "2024.yaml")
    assert load_recipe("2024.yaml").name == "2024"


def test_an_environment_is_checked() -> None:
    assert "called name" in refused("check-env", "number_line", "name=3")
    assert "option size was given twice" in refused("check-env", "number_line", "size=5", "size=7")
    done = reflectrl("check-env", "number_line", "size=6")
    assert done.code == 0, done.err
    assert "16 train, 7 validation, 7 test tasks; horizon 6" in done.out
    told = reflectrl("check-env", "corridor:Hall").out.splitlines()
    assert [line.partition(":")[0] for line in told] == ["corridor", "Remark", "Remark"]
    assert "dangerous_taxi" in reflectrl("check-env", "--list").out.splitlines()


@pytest.mark.parametrize("command", ["report", "export", "runs"])
def test_a_path_that_is_too_long_is_refused(command: str) -> None:
    assert "longer than the file system allows" in refused(command, "x" * 300)


@pytest.mark.slow
def test_without_verifiers_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['verifiers'] = None; from reflectrl.cli import main; main()"
    command = [sys.executable, "-c", program, "env", "export", "number_line", "--verifiers", "new"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "run pip install 'reflectrl[verifiers]'." in done.stderr
    assert [*tmp_path.iterdir()] == []
