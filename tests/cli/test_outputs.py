"""What a command is told to write: nothing but a new or a regular file is ever written or replaced."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import refused

COMMANDS = """\
report run --out
plot run --out
play number_line --expert --save
export run --out
recipes cp number_line/nano
new-env vault --out"""
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


@pytest.mark.parametrize("place", [*PLACES, "device"])
def test_a_place_that_is_no_regular_file_is_refused_and_left_alone(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    name = "/dev/null" if place == "device" else "nano.svg"
    if place != "device":
        PLACES[place](tmp_path / name)
    before = picture(tmp_path)
    for words in COMMANDS.splitlines():
        if place != "device" or not words.startswith("plot"):  # which looks at the suffix first
            assert name in refused(*words.split(), name)
    assert picture(tmp_path) == before
    assert Path("/dev/null").is_char_device()
