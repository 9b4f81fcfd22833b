"""Output files of commands: only a new or a regular file is ever written or replaced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_line import refused

COMMANDS = """\
report run --out
compare run --csv
play number_line --expert --save
export run --out
data export run --format trl --out
data import talk.json number_line --out
recipes cp number_line/nano
new-env harbour --out"""
"""Commands that write to the path in their last argument."""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "link", "dangling link", "pipe"])
def test_a_place_that_is_no_regular_file_is_refused_and_left_alone(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nano.svg"
    (tmp_path / "run").mkdir()
    (tmp_path / "target.svg").write_text("mine")
    if place == "folder":
        path.mkdir()
        (path / "nano.yaml").write_text("mine")  # what recipes cp would put into it
    elif place == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("target.svg" if place == "link" else "nowhere.svg")

    def found() -> list[tuple[str, int, int]]:
        return sorted((str(each), each.lstat().st_ino, each.lstat().st_mtime_ns) for each in tmp_path.rglob("*"))

    before = found()
    for words in COMMANDS.splitlines():
        assert "nano.svg" in refused(*words.split(), "nano.svg")
    assert found() == before


def test_a_report_replaces_no_file_of_a_run(tmp_path: Path) -> None:
    results = tmp_path / "eval.jsonl"
    results.write_text("{}")
    assert ".html" in refused("report", str(tmp_path), "--out", str(results))
    assert results.read_text() == "{}"
