"""What new-env writes is a package that installs, passes its own tests and the linters, and trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reflectrl.core import InvalidInput
from reflectrl.skeleton import write_package
from reflectrl.skeleton.name import LONGEST
from reflectrl.skeleton.write import FILES

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"


def run(*command: object, path: Path | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A program of Python's, with the folder ``path`` to import from."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(path)} if path else {})
    words = [sys.executable, "-m", *map(str, command)]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("new") / "its place"
    done = run("reflectrl", "new-env", "treasure_map", "--out", folder)
    assert done.returncode == 0, done.stderr
    written = sorted(path for path in folder.rglob("*") if path.is_file())
    first, _, rest = done.stdout.partition("\nNext:\n")
    assert sorted(map(Path, first.splitlines())) == written
    assert f"pip install -e '{folder}'" in rest
    return folder


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package; pip leaves its own files in a copy of the source."""
    source, site = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(package, source)
    done = run("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", site, source)
    assert done.returncode == 0, done.stderr
    return site


def test_it_keeps_every_promise_once_installed(installed):
    done = run("reflectrl", "check-env", "treasure_map", path=installed)
    assert done.stdout.startswith("treasure_map: every check passed (32 train, 16 validation, 16 test tasks"), (
        done.stderr
    )


def test_its_options_are_taken_and_checked(installed):
    few = run("reflectrl", "check-env", "treasure_map", "rooms=4", path=installed)
    assert "(8 train, 4 validation, 4 test tasks; horizon 12)" in few.stdout
    wrong = run("reflectrl", "check-env", "treasure_map", "rooms=2", path=installed)
    assert wrong.returncode == 2
    assert "rooms=2; expected 3 or more" in wrong.stderr


def test_its_own_tests_pass(package, installed):
    done = run("pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", package, path=installed, cwd=package)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


@pytest.mark.slow
def test_its_recipe_teaches_trains_and_evaluates(package, installed, tmp_path):
    short = ["data.samples=60", "sft.reflector.steps=4", "sft.policy.steps=4", "rlft.stages.0.iterations=2"]
    short += ["rlft.episodes=4", "eval.episodes=4", "eval.policies=[rlft, expert]", "eval.controls=[]"]
    recipe = package / "recipes" / "nano.yaml"
    done = run("reflectrl", "run", "--recipe", recipe, "--run", "here", *short, path=installed, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expert = next(line for line in done.stdout.splitlines() if " expert " in line and " none " in line)
    assert "100%" in expert
    assert (tmp_path / "runs" / "here" / "report.html").is_file()


@pytest.mark.parametrize("name", ["ox", "treasure_map", "m" * LONGEST])
def test_whatever_it_is_called_the_linter_has_nothing_to_say(name, tmp_path):
    write_package(name, tmp_path / name)
    for wish in (["check"], ["format", "--check"]):
        done = run("ruff", *wish, "--no-cache", "--config", CONFIG, tmp_path / name)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_type_checker_has_nothing_to_say_either(package):
    done = run("mypy", "--config-file", CONFIG, "--strict", package / "src", package / "tests", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_every_template_is_used():
    templates = {path.name for path in (ROOT / "reflectrl" / "skeleton").glob("*.tmpl")}
    assert templates == set(FILES.values())


def test_the_same_name_gives_the_same_bytes(tmp_path):
    one, two = (write_package("vault", tmp_path / folder) for folder in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_nothing_is_left_to_fill_in(tmp_path):
    for path in write_package("vault", tmp_path / "vault"):
        assert "$" not in path.read_text(encoding="utf-8")


def test_a_folder_that_exists_is_refused_and_left_alone(tmp_path):
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    for place in (tmp_path, kept):
        done = run("reflectrl", "new-env", "vault", "--out", place)
        assert done.returncode == 2
        assert done.stderr == f"error: {place} exists already; choose another folder with --out, or remove it.\n"
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_a_link_that_leads_nowhere_is_not_followed(tmp_path):
    (tmp_path / "vault").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="exists already"):
        write_package("vault", tmp_path / "vault")
    assert not (tmp_path / "elsewhere").exists()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="file/vault cannot be written: .*; choose another place"):
        write_package("vault", tmp_path / "file" / "vault")


def test_without_a_place_it_is_written_where_one_is(tmp_path):
    done = run("reflectrl", "new-env", "vault", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "vault" / "src" / "vault" / "env.py").is_file()
    assert "pip install -e ./vault\n" in done.stdout


def test_a_name_that_is_none_writes_nothing(tmp_path):
    done = run("reflectrl", "new-env", "my-env", cwd=tmp_path)
    assert done.returncode == 2
    assert "try 'my_env'" in done.stderr
    assert not list(tmp_path.iterdir())
