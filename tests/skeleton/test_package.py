"""What new-env writes is a package that installs, passes its own tests and the linters, and trains."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import reflectrl, refused

from reflectrl.core import InvalidInput
from reflectrl.skeleton import write_package
from reflectrl.skeleton.name import MAX_NAME_CHARS
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
    done = reflectrl("new-env", "treasure_map", "--out", folder)
    assert done.code == 0, done.err
    written = sorted(path for path in folder.rglob("*") if path.is_file())
    first, _, rest = done.out.partition("\nNext:\n")
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


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 0, "treasure_map: every check passed (32 train, 16 validation, 16 test tasks"),
        (("rooms=4",), 0, "(8 train, 4 validation, 4 test tasks; horizon 12)"),
        (("rooms=2",), 2, "rooms=2"),
    ],
)
def test_it_keeps_every_promise_once_installed(options, code, said, installed):
    done = run("reflectrl", "check-env", "treasure_map", *options, path=installed)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True)


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


def test_whatever_it_is_called_the_linter_has_nothing_to_say(tmp_path):
    for name in ("ox", "treasure_map", "m" * MAX_NAME_CHARS):
        write_package(name, tmp_path / name)
    for wish in (["check"], ["format", "--check"]):
        done = run("ruff", *wish, "--no-cache", "--config", CONFIG, tmp_path)
        assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_the_type_checker_has_nothing_to_say_either(package):
    done = run("mypy", "--config-file", CONFIG, "--strict", package / "src", package / "tests", cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_every_template_is_used_and_filled_in_the_same_way_each_time(tmp_path):
    templates = {path.name for path in (ROOT / "reflectrl" / "skeleton").glob("*.tmpl")}
    assert templates == set(FILES.values())
    one, two = (write_package("vault", tmp_path / folder) for folder in ("one", "two"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    assert not [path for path in one if "$" in path.read_text(encoding="utf-8")]


def test_what_exists_is_left_alone_and_a_broken_place_named(tmp_path):
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    (tmp_path / "vault").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path, kept, tmp_path / "vault", kept / "vault"):
        with pytest.raises(InvalidInput, match=str(place)):
            write_package("vault", place)
    assert kept.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "vault"}


def test_without_a_place_it_is_written_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "'my_env'" in refused("new-env", "my-env")
    assert not list(tmp_path.iterdir())
    done = reflectrl("new-env", "vault")
    assert done.code == 0, done.err
    assert (tmp_path / "vault" / "src" / "vault" / "env.py").is_file()
    assert "pip install -e ./vault\n" in done.out
