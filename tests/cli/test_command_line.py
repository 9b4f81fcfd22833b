"""The command line, as a user runs it: real processes, exit codes, sentences on stderr."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reflectrl.config import load_recipe, recipe_names


def reflectrl(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = "from reflectrl.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300)


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """What a command that is refused says: one message, no traceback, exit code 2."""
    done = reflectrl(*arguments, cwd=cwd)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("error: ")
    return done.stderr


def test_help_lists_every_command() -> None:
    done = reflectrl("--help")
    assert done.returncode == 0
    for command in ("run", "gen-data", "sft", "rlft", "eval", "report", "recipes", "check-env", "version"):
        assert f"  {command} " in done.stdout


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from reflectrl.cli import main\n"
        "try: main()\n"
        "except SystemExit: print([m for m in ('torch', 'transformers', 'openai', 'pydantic') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


@pytest.mark.parametrize("arguments", [["version"], ["--version"]])
def test_version(arguments: list[str]) -> None:
    import reflectrl as package

    assert reflectrl(*arguments).stdout.strip() == f"reflectrl {package.__version__}"


@pytest.mark.parametrize(
    "arguments", [["trian"], ["run"], ["run", "--recip", "x"], ["sft", "-r", "x", "--player", "critic"]]
)
def test_unknown_commands_options_and_players_exit_with_2(arguments: list[str]) -> None:
    done = reflectrl(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_an_unknown_recipe_names_the_nearest() -> None:
    assert "did you mean 'dangerous_taxi/nano'" in refused("run", "-r", "dangerous_taxi/nanoo")


def test_unknown_keys_are_reported_all_at_once() -> None:
    said = refused("rlft", "-r", "dangerous_taxi/nano", "rlft.gama=0.9", "promt.history=2")
    assert "rlft.gama: unknown key, given 0.9; did you mean 'gamma'?" in said
    assert "promt: unknown key, given {'history': 2}; did you mean 'prompt'?" in said


def test_environment_options_are_checked_before_any_work(tmp_path: Path) -> None:
    said = refused("gen-data", "-r", "dangerous_taxi/nano", "env.options.stage=pikup", cwd=tmp_path)
    assert "env.options: stage 'pikup' of 'dangerous_taxi' is unknown; did you mean 'pickup'" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "..", ""])
def test_a_run_is_one_folder_inside_runs(tmp_path: Path, name: str) -> None:
    said = refused("gen-data", "-r", "number_line/nano", "--run", name, cwd=tmp_path)
    assert "expected the name of one folder" in said


def test_recipes_ls_lists_what_is_shipped() -> None:
    done = reflectrl("recipes", "ls")
    assert [line.split()[0] for line in done.stdout.splitlines()] == recipe_names()


def test_recipes_show_prints_a_whole_recipe(tmp_path: Path) -> None:
    done = reflectrl("recipes", "show", "dangerous_taxi/nano_ppo", "seed=3")
    path = tmp_path / "shown.yaml"
    path.write_text(done.stdout, encoding="utf-8")
    assert load_recipe(str(path)) == load_recipe("dangerous_taxi/nano_ppo", ["seed=3"])


def test_recipes_cp_makes_a_file_of_ones_own_and_never_overwrites(tmp_path: Path) -> None:
    assert reflectrl("recipes", "cp", "dangerous_taxi/nano_ppo", cwd=tmp_path).stdout.strip() == "nano_ppo.yaml"
    assert load_recipe(str(tmp_path / "nano_ppo.yaml")) == load_recipe("dangerous_taxi/nano_ppo")
    assert "exists already" in refused("recipes", "cp", "dangerous_taxi/nano_ppo", cwd=tmp_path)
    assert reflectrl("recipes", "cp", "dangerous_taxi/nano", "mine.yaml", cwd=tmp_path).returncode == 0
    assert "cannot be written" in refused("recipes", "cp", "dangerous_taxi/nano", "gone/mine.yaml", cwd=tmp_path)
    assert "did you mean" in refused("recipes", "cp", "dangerous_taxi/nan", cwd=tmp_path)


def test_check_env_says_that_an_environment_is_sound() -> None:
    done = reflectrl("check-env", "number_line", "size=6")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("number_line: every check passed (15 train, 8 validation, 7 test tasks; horizon 6)")


def test_check_env_lists_names() -> None:
    assert "dangerous_taxi" in reflectrl("check-env", "--list").stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["number_lin"], "did you mean 'number_line'"),
        (["number_line", "siz=4"], "has no option 'siz'; did you mean 'size'"),
        (["number_line", "size"], "expected key=value"),
        (["number_line", "size=["], "is no valid YAML"),
        (["number_line", "size=2"], "size=2 was given"),
        ([], "no environment was given"),
    ],
)
def test_check_env_refuses_with_a_sentence(arguments: list[str], message: str) -> None:
    assert message in refused("check-env", *arguments)


def test_report_wants_run_folders_that_exist(tmp_path: Path) -> None:
    said = refused("report", "runs/none", "runs/neither", cwd=tmp_path)
    assert "runs/none, runs/neither" in said


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    # a process started in the background may inherit a SIGINT that is ignored
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", f"{code}from reflectrl.cli import main; main()", "run", "-r", "number_line/nano"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = tmp_path / "runs" / "number_line-nano" / "sft" / "reflector.jsonl"
    deadline = time.monotonic() + 120
    while not rows.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "The same command goes on from there." in said
    assert "Traceback" not in said
