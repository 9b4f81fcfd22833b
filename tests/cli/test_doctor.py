"""``reflectrl doctor``: installed and missing parts, with advice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from command_line import reflectrl

SECRET = "sk-not-for-any-screen"


def line(out: str, what: str) -> str:
    [found] = [line for line in out.splitlines() if re.match(rf"{what}  ", line)]
    return found


def test_a_sound_installation_is_shown_with_its_versions_and_without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OPENAI_API_KEY", SECRET), ("HF_TOKEN", ""), ("WANDB_API_KEY", "  ")):
        monkeypatch.setenv(name, value)
    done = reflectrl("doctor")
    assert (done.code, done.err) == (0, "")
    for package in ("trl", "reflectrl"):
        assert version(package) in line(done.out, package)
    assert "MIT licence" in line(done.out, "reflectrl")
    assert "extra serve" in done.out
    for name, state in (("OPENAI_API_KEY", "set"), ("HF_TOKEN", "not set"), ("WANDB_API_KEY", "not set")):
        assert re.search(rf"{name} +{state} ", line(done.out, name))
    assert re.search("pip +found$", line(done.out, "pip"))
    assert SECRET not in done.out


@pytest.mark.slow
def test_what_is_missing_or_too_old_is_shown_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "openai-1.0.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: openai\nVersion: 1.0\n")
    code = "import ctypes.util; ctypes.util.find_library = lambda name: None; from reflectrl.cli import main; main()"
    env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True, env=env)
    assert done.returncode == 1
    for name in ("bwrap", "libseccomp"):
        assert re.search("not found  .*apt-get", line(done.stdout, name))
    assert re.search(r"1\.0; .*>=3\.52 +\(pip install (reflectrl|-e \S+)\)", line(done.stdout, "openai"))
    assert "openai" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("installed", "advice"),
    [
        (None, "pip install 'reflectrl[lit]'"),
        (
            {"url": "file:///elsewhere/a%20clone", "dir_info": {"editable": True}},
            "pip install -e '/elsewhere/a clone[lit]'",
        ),
        ({"url": "file://{here}", "dir_info": {"editable": True}}, "pip install -e '.[lit]'"),
        ({"url": "file://{here}", "dir_info": {}}, "pip install 'reflectrl[lit]'"),
    ],
)
def test_the_advice_is_for_this_kind_of_installation(
    installed: dict[str, object] | None, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "reflectrl-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.4\nName: reflectrl\nVersion: 9\nLicense-Expression: MIT\nProvides-Extra: lit\n"
        "Requires-Dist: no-such-package; extra == 'lit'\n"
    )
    if installed:
        (info / "direct_url.json").write_text(json.dumps(installed).replace("{here}", str(tmp_path)))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert line(reflectrl("doctor").out, "extra lit").endswith(f"({advice})")
