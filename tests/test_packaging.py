"""The built wheel, used from outside the tree: everything is in it, and it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run_outside(unpacked: Path, folder: Path, code: str) -> str:
    """Run ``code`` in ``folder`` with the wheel's contents before everything else on the path."""
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_package_and_recipe_on_disk_is_in_the_wheel(wheel: Path) -> None:
    on_disk = {
        str(path.relative_to(ROOT) if folder == "reflectrl" else Path("reflectrl") / path.relative_to(ROOT))
        for folder in ("reflectrl", "envs", "data_gen", "recipes")
        for pattern in ("*.py", "*.yaml", "*.css", "*.js", "*.tmpl", "py.typed")
        for path in (ROOT / folder).rglob(pattern)
    }
    assert on_disk <= set(zipfile.ZipFile(wheel).namelist())


def test_nothing_else_is_in_the_wheel(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"reflectrl"}


def test_the_wheel_imports_its_environments(unpacked: Path, tmp_path: Path) -> None:
    code = "import reflectrl.envs.dangerous_taxi as taxi; print(taxi.__file__)"
    assert Path(run_outside(unpacked, tmp_path, code).strip()).is_relative_to(unpacked)


def test_the_wheel_finds_its_recipes(unpacked: Path, tmp_path: Path) -> None:
    code = "from reflectrl.config import *; print(*[name for name in recipe_names() if load_recipe(name)])"
    shipped = {str(path.relative_to(ROOT / "recipes").with_suffix("")) for path in (ROOT / "recipes").rglob("*.yaml")}
    assert set(run_outside(unpacked, tmp_path, code).split()) == shipped


def test_the_wheel_runs_the_command_line(unpacked: Path, tmp_path: Path) -> None:
    code = "import sys; from reflectrl.cli import main; sys.argv = ['reflectrl', 'check-env', 'number_line']; main()"
    assert "every check passed" in run_outside(unpacked, tmp_path, code)


def test_gymnasium_makes_the_wheels_environments_by_their_ids(unpacked: Path, tmp_path: Path) -> None:
    code = "import gymnasium, reflectrl; print(gymnasium.make('reflectrl/DangerousTaxi-v0').reset(seed=0)[1]['task'])"
    assert "-to-" in run_outside(unpacked, tmp_path, code)


def test_the_version_has_one_source(wheel: Path) -> None:
    import reflectrl

    assert wheel.name.startswith(f"reflectrl-{reflectrl.__version__}-")
