"""What commands print of foreign text, names of files, tasks and runs among it, does nothing to a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NASTY = "n\x1b]0;x\x07\x1b[31m\x9b2J\u202en"
COMMANDS = [
    (["new-env", "vault", "--out", f"{NASTY}.new"], 0),
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
ALL = """
import json, sys
from reflectrl.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["reflectrl", *arguments]
    try:
        main()
    except SystemExit as left:
        sys.stdout.flush()
        print(f"exit {left.code}", file=sys.stderr, flush=True)
"""


def test_no_name_is_obeyed(tmp_path: Path) -> None:
    folder = tmp_path / NASTY
    (folder / f"{NASTY}.dir").mkdir(parents=True)
    (folder / f"{NASTY}.dir" / "readme.md").write_text("x")
    (folder / f"{NASTY}.yaml").write_text(NASTY)
    given = json.dumps([arguments for arguments, _ in COMMANDS])
    done = subprocess.run(
        [sys.executable, "-c", ALL, given],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    said = done.stdout.split("\n")
    assert [line for line in said if line.startswith("exit ")] == [f"exit {code}" for _, code in COMMANDS]
    assert "Traceback" not in done.stdout
    assert "\u241b" in done.stdout
    assert [line for line in said if not line.isprintable()] == []
