"""``reflectrl doctor``: what is here, what is missing, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

SECRET = "sk-not-for-any-screen"


def doctor(code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    run = f"{code}\nfrom reflectrl.cli import main; main()"
    command = [sys.executable, "-c", run, "doctor"]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=given)


def line(done: subprocess.CompletedProcess[str], what: str) -> str:
    [found] = [line for line in done.stdout.splitlines() if re.match(rf"{what}  ", line)]
    return found


def test_a_sound_installation_is_told_with_its_versions() -> None:
    done = doctor()
    assert (done.returncode, done.stderr) == (0, "")
    assert version("trl") in line(done, "trl")
    assert version("reflectrl") in line(done, "reflectrl")
    assert "core" in done.stdout
    assert done.stdout.endswith("What every recipe needs is here.\n")


def test_of_keys_only_their_presence_is_told() -> None:
    done = doctor(OPENAI_API_KEY=SECRET, HF_TOKEN="", WANDB_API_KEY="  ")
    for name, state in (("OPENAI_API_KEY", "set"), ("HF_TOKEN", "not set"), ("WANDB_API_KEY", "not set")):
        assert re.search(rf"{name} +{state} ", line(done, name))
    assert SECRET not in done.stdout


def test_a_program_that_is_not_there_is_named_with_what_needs_it(tmp_path: Path) -> None:
    done = doctor(PATH=str(tmp_path))
    assert done.returncode == 0
    assert "not found  (only for python and pip in the sandbox" in line(done, "bwrap")


def test_a_library_of_the_system_is_named_with_what_needs_it() -> None:
    missing = doctor("import ctypes.util; ctypes.util.find_library = lambda name: None")
    assert "not found  (only for python and pip in the sandbox" in line(missing, "libseccomp")


def test_a_package_that_is_missing_or_too_old_is_told_with_the_command(tmp_path: Path) -> None:
    old = tmp_path / "openai-1.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: openai\nVersion: 1.0\n")
    done = doctor(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert re.search(r"1\.0; wanted is >=3\.52 +\(pip install ", line(done, "openai"))
    assert done.stdout.endswith("Nothing works without openai.\n")
