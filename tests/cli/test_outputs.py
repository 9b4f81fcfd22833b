"""What a command is told to write: nothing but a new or a regular file is ever written or replaced."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reflectrl.cli.app import app
from reflectrl.core import InvalidInput

COMMANDS: dict[str, Sequence[str]] = {
    "report": ("report", "run", "--out"),
    "plot": ("plot", "run", "--out"),
    "play": ("play", "number_line", "--expert", "--save"),
    "export": ("export", "run", "--out"),
    "recipes cp": ("recipes", "cp", "number_line/nano"),
    "new-env": ("new-env", "vault", "--out"),
}
"""Commands that write what their last argument names."""


def make_folder(path: Path) -> None:
    (path / "mine").mkdir(parents=True)
    (path / f"{path.stem}.yaml").write_text("mine")  # what recipes cp would put into it


def make_link(path: Path) -> None:
    path.with_name("target.svg").write_text("mine")
    path.symlink_to("target.svg")


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)


PLACES: dict[str, Callable[[Path], None]] = {
    "folder": make_folder,
    "link": make_link,
    "dangling link": lambda path: path.symlink_to("nowhere.svg"),
    "link to a device": lambda path: path.symlink_to("/dev/null"),
    "pipe": os.mkfifo,
    "socket": make_socket,
}


def picture(folder: Path) -> list[tuple[str, int, int, str]]:
    """What lies in ``folder``, and whether it is still the same."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found.append((str(path), status.st_mode, status.st_ino, content))
    return found


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_is_no_regular_file_is_refused_and_left_alone(
    command: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    PLACES[place](tmp_path / "nano.svg")
    before = picture(tmp_path)
    done = CliRunner().invoke(app, [*COMMANDS[command], "nano.svg"])
    assert isinstance(done.exception, InvalidInput), done.output
    assert "nano.svg" in str(done.exception)
    assert done.stdout == ""
    assert picture(tmp_path) == before


@pytest.mark.parametrize("command", ["report", "play", "recipes cp", "export", "new-env"])
def test_a_device_is_refused(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    done = CliRunner().invoke(app, [*COMMANDS[command], "/dev/null"])
    assert isinstance(done.exception, InvalidInput), done.output
    assert "/dev/null" in str(done.exception)
    assert Path("/dev/null").is_char_device()
