"""``reflectrl serve``: what is refused before anything is served."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import InvalidInput


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["serve", *map(str, arguments)])
    assert isinstance(done.exception, InvalidInput), done.output
    assert done.exception.exit_code == 2
    assert done.stdout == ""
    return str(done.exception)


def run_of(folder: Path, *overrides: str) -> Path:
    """A run folder in which nothing was trained yet."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(dump_recipe(load_recipe("number_line/nano", list(overrides))))
    return folder


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "is no run folder" in refused(tmp_path, "--port", 0)


def test_a_run_without_a_policy_is_told_which_stage_is_missing(tmp_path: Path) -> None:
    assert "run `reflectrl sft` for it first" in refused(run_of(tmp_path / "run"), "--port", 0)


def test_a_run_that_needs_the_expert_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", "players.reflector=expert")
    assert "who knows nothing of a state from elsewhere" in refused(run, "--port", 0)


def test_an_unknown_policy_names_the_nearest(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run")
    assert "did you mean 'policy-sft'?" in refused(run, "--port", 0, "--policy", "policy-stf")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        sentence = refused(run_of(tmp_path / "run"), "--port", other.getsockname()[1])
    assert "Address already in use" in sentence
    assert "choose another --host or --port" in sentence


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    assert "cannot be listened at" in refused(run_of(tmp_path / "run"), "--host", "192.0.2.1", "--port", 0)
    assert "cannot be listened at" in refused(run_of(tmp_path / "other"), "--host", "no such host", "--port", 0)


@pytest.mark.parametrize("key", ["", "  ", "two\nlines", "schlüssel"])
def test_a_key_that_is_none_is_refused(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_KEY", key)
    sentence = refused(run_of(tmp_path / "run"), "--api-key-env", "SERVE_KEY", "--port", 0)
    assert sentence.startswith("the environment variable SERVE_KEY holds no key")
    assert "schl" not in sentence


def test_without_the_extra_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None\nfrom reflectrl.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", str(run_of(tmp_path / "run"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: serving needs packages that are not installed (uvicorn); run pip install 'reflectrl[serve]'.\n"
    )


def test_the_help_of_the_command_line_needs_no_server_library() -> None:
    code = "import sys; from reflectrl.cli import app; print([m for m in ('fastapi', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\n"
