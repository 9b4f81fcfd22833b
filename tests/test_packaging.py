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

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = ["reflectrl", "envs", "data_gen", "recipes", "pyproject.toml", "README.md", "LICENSE"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build from a copy, so that neither old build folders nor the links' targets outside can help or hinder."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, tree / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", out, tree]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("reflectrl-*.whl"))


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


def test_the_wheel_holds_what_is_on_disk_and_nothing_else(wheel: Path) -> None:
    import reflectrl

    on_disk = {
        str(path.relative_to(ROOT) if folder == "reflectrl" else Path("reflectrl") / path.relative_to(ROOT))
        for folder in ("reflectrl", "envs", "data_gen", "recipes")
        for pattern in ("*.py", "*.yaml", "*.css", "*.html", "*.js", "*.mplstyle", "*.tmpl", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    names = zipfile.ZipFile(wheel).namelist()
    assert on_disk <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"reflectrl"}
    assert wheel.name.startswith(f"reflectrl-{reflectrl.__version__}-")


def test_the_wheel_works_from_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    command = [sys.executable, "-c", OUTSIDE]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    file, task, recipes = json.loads(first)
    assert Path(file).is_relative_to(tmp_path / "site")
    assert "-to-" in task
    shipped = {str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in (ROOT / "recipes").rglob("*.yaml")}
    assert set(recipes) == shipped
    assert "every check passed" in second
