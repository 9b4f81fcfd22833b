"""Files that commands are asked to write: only a new or a regular file is ever written or replaced."""

from __future__ import annotations

import os
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


PLACES: dict[str, Callable[[Path], None]] = {
    "folder": make_folder,
    "link": make_link,
    "dangling link": lambda path: path.symlink_to("nowhere.svg"),
    "pipe": os.mkfifo,
}


def picture(folder: Path) -> list[tuple[str, int, int, str]]:
    """Paths, modes, inodes and contents of everything in ``folder``."""
    found = []
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else ""
        found.append((str(path), status.st_mode, status.st_ino, content))
    return found


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_is_no_regular_file_is_refused_and_left_alone(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    PLACES[place](tmp_path / "nano.svg")
    before = picture(tmp_path)
    for words in COMMANDS.splitlines():
        assert "nano.svg" in refused(*words.split(), "nano.svg")
    assert picture(tmp_path) == before
