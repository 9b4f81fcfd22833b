"""The built wheel, used from outside the tree: everything is in it, and it works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import reflectrl

ROOT = Path(__file__).parents[1]
FOLDERS, FILES = ("reflectrl", "envs", "data_gen", "recipes"), ("pyproject.toml", "README.md", "LICENSE")
OUTSIDE = """
import json, sys
import gymnasium
import reflectrl.envs.dangerous_taxi as taxi
from reflectrl.cli import main
from reflectrl.config import load_recipe, recipe_names

made = gymnasium.make("reflectrl/DangerousTaxi-v0").reset(seed=0)[1]["task"]
print(json.dumps([taxi.__file__, made, [name for name in recipe_names() if load_recipe(name)]]))
sys.argv = ["reflectrl", "check-env", "number_line"]
main()
"""


def python(*arguments: object, cwd: Path, **environment: str) -> str:
    command = [sys.executable, *map(str, arguments)]
    given = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_works_from_outside_the_tree(tmp_path: Path) -> None:
    """The wheel is built from a copy, so that old build folders and link targets outside have no influence."""
    tree, site = tmp_path / "tree", tmp_path / "site"
    for name in FOLDERS:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignore)
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    python("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", tree, cwd=tmp_path)
    (wheel,) = (tmp_path / "wheels").glob(f"reflectrl-{reflectrl.__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    on_disk = {
        str(path.relative_to(ROOT) if folder == "reflectrl" else Path("reflectrl") / path.relative_to(ROOT))
        for folder in FOLDERS
        for pattern in ("*.py", "*.yaml", "*.css", "*.html", "*.js", "*.tmpl", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert on_disk <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"reflectrl"}
    first, second = python("-c", OUTSIDE, cwd=tmp_path, PYTHONPATH=str(site)).splitlines()
    file, task, recipes = json.loads(first)
    assert Path(file).is_relative_to(site)
    assert "-to-" in task
    shipped = {
        str(path.relative_to(ROOT / "recipes").with_suffix(""))
        for path in (ROOT / "recipes").rglob("*.yaml")
        if path.parent.name != "accelerate"
    }
    assert shipped < set(recipes), "the files, and their arms"
    assert "every check passed" in second
