"""A run in a separate process with a new home folder: every line on the screen is one of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TINY = [
    "data.samples=40",
    "sft.reflector.steps=2",
    "sft.policy.steps=2",
    "rlft.lessons.0.iterations=2",
    "rlft.episodes=4",
    "eval.episodes=4",
    "eval.max_tasks=2",
    "players.reflector.max_new_tokens=4",
    "reflector_model={name: builtin/nano, builtin: {layers: 1, width: 32}, max_length: 128}",
    "model.lora={r: 2, target_modules: [c_attn]}",
    "model.quantization=4bit",
]
"""Overrides for a run of a few steps, with all weights of one player and 4-bit adapters of the other."""
OURS = [
    r"(gen-data|sft reflector|sft policy|rlft|eval) +done in .*",
    r"run +policy +reflections by +mode .*",
    r"number_line-nano +(random|sft|rlft|expert) .*",
    r"RLFT (went|is|raised|lowered|made no clear difference).*",
    r"number_line-nano (kept the weights that RLFT began with|is played with).*",
    r"Why: .*\. Try: .*",
    r"The mean return is .*, that of random play .*\.",
    r"One run a recipe: .*",
    r"report: runs/number_line-nano/report.html",
]


def in_a_new_home(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "OMP_NUM_THREADS")}
    environment = {**kept, "HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_shows_its_own_lines_and_no_other(tmp_path: Path) -> None:
    done = in_a_new_home(tmp_path, "-m", "reflectrl", "run", "-r", "number_line/nano", *TINY)
    assert done.returncode == 0, done.stderr
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    assert len(lines) > 10
    assert [line for line in lines if not any(re.fullmatch(known, line) for known in OURS)] == []


@pytest.mark.slow
def test_warnings_of_libraries_are_hidden_unless_they_are_asked_for_and_errors_are_not(tmp_path: Path) -> None:
    code = (
        "import logging, sys, warnings\n"
        "from reflectrl.cli import main\n"
        "sys.argv = ['reflectrl', '--version']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "theirs = logging.getLogger('bitsandbytes.backends.cpu.ops')\n"
        "theirs.warning('Failed to load CPU gemm_4bit_forward')\n"
        "theirs.error('no such device')\n"
        "warnings.warn('will change', FutureWarning)\n"
        "logging.getLogger('reflectrl.lm.load').warning('ours')\n"
        "logging.getLogger('an.environment').warning('an author')\n"
    )
    assert in_a_new_home(tmp_path, "-c", code).stderr == "no such device\nours\nan author\n"
    assert "will change" in in_a_new_home(tmp_path, "-W", "default", "-c", code).stderr
