"""Untrusted text that commands print, such as names of files, tasks and runs, cannot control a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import reflectrl

NASTY = "n\x1b]0;x\x07\x1b[31m\x9b2J\u202en"
COMMANDS = [
    (["new-env", "harbour", "--out", f"{NASTY}.new"], 0),
    (["recipes", "cp", "number_line/nano", f"{NASTY}.copy"], 0),
    (["recipes", "cp", "number_line/nano", f"{NASTY}.dir"], 0),
    (["recipes", "show", f"{NASTY}.yaml"], 2),
    (["report", f"{NASTY}.dir"], 2),
    (["plot", f"{NASTY}.dir", "--out", "x.svg"], 2),
    (["export", f"{NASTY}.dir"], 2),
    (["check-env", NASTY], 2),
    (["check-env", "number_line", f"size={NASTY}"], 2),
    (["check-env", "number_line", f"{NASTY}=1"], 2),
    (["play", "number_line", "--task", NASTY], 2),
    (["run", "--recipe", NASTY], 2),
    (["gen-data", "--recipe", "number_line/nano", "--run", f"{NASTY}/.."], 2),
    (["gen-data", "--recipe", "number_line/nano", f"{NASTY}=1"], 2),
    (["explore", f"{NASTY}.dir", "What?", "--expert", f"{NASTY}.md"], 2),
    (["explore", f"{NASTY}.gone", "What?"], 2),
    (["version", NASTY], 2),
    ([NASTY], 2),
]


@pytest.mark.slow
def test_no_name_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / NASTY
    (folder / f"{NASTY}.dir").mkdir(parents=True)
    (folder / f"{NASTY}.dir" / "readme.md").write_text("x")
    (folder / f"{NASTY}.yaml").write_text(NASTY)
    monkeypatch.chdir(folder)
    shown = ""
    for arguments, code in COMMANDS:
        done = reflectrl(*arguments)
        assert done.code == code, (arguments, done)
        assert [line for line in (done.out + done.err).split("\n") if not line.isprintable()] == []
        shown += done.out + done.err
    assert "\u241b" in shown
