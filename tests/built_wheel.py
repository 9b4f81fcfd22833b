"""The wheel, built as for a package index: from a source archive of a copy of the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import reflectrl

ROOT = Path(__file__).parents[1]
FOLDERS = ("reflectrl", "envs", "data_gen", "recipes")
FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")


def run(*command: object, cwd: Path, **environment: str) -> str:
    """Run a program that has to succeed, and return its output."""
    given = {**os.environ, **environment}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_wheel(folder: Path) -> Path:
    """Build it in ``folder``; of a copy, so that old build folders and link targets outside have no influence."""
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, folder / "tree" / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, folder / "tree" / name)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", folder / "tree", cwd=folder)
    [wheel] = (folder / "dist").glob(f"reflectrl-{reflectrl.__version__}-*.whl")
    return wheel
