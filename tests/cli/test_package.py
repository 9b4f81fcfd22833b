"""The package that new-env writes installs, passes its own tests and the linters, and trains."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command_line import reflectrl, refused

from reflectrl.cli.envs import FILES, MAX_NAME_CHARS, write_package
from reflectrl.core import InvalidInput

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"


def run(*command: object, cwd: Path | None = None) -> str:
    """Run a Python program that has to succeed, and return its output."""
    words = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


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
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package, installed where this process finds it; pip builds it in a copy of the source."""
    source, site = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(package, source)
    run("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", site, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "treasure_map"]:
        del sys.modules[name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ((), 0, "treasure_map: every check passed (32 train, 16 validation, 16 test tasks"),
        (("rooms=4",), 0, "(8 train, 4 validation, 4 test tasks; horizon 12)"),
        (("rooms=2",), 2, "rooms=2"),
    ],
)
@pytest.mark.usefixtures("installed")
def test_it_keeps_every_promise_once_installed(options, code, said):
    done = reflectrl("check-env", "treasure_map", *options)
    assert (done.code, said in done.out + done.err) == (code, True)


@pytest.mark.slow
def test_its_own_tests_pass_and_its_recipe_teaches_trains_and_evaluates(installed, tmp_path, monkeypatch):
    own = runpy.run_path(str(installed / "tests" / "test_env.py"))
    tests = [value for name, value in own.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()
    monkeypatch.chdir(tmp_path)
    short = [
        *("--minutes", "0.1"),
        *("data.samples=60", "rlft.episodes=8", "eval.episodes=4", "eval.greedy=false"),
        "eval.policies=[rlft, expert]",
        "eval.controls=[]",
    ]
    done = reflectrl("run", "--recipe", installed / "recipes" / "nano.yaml", "--run", "here", *short)
    assert done.code == 0, done.err
    expert = next(line for line in done.out.splitlines() if " expert " in line and " none " in line)
    assert "100%" in expert
    assert (tmp_path / "runs" / "here" / "report.html").is_file()


def test_templates_are_used_and_linted_for_any_name(tmp_path):
    templates = {path.name for path in (ROOT / "reflectrl" / "cli" / "skeleton").glob("*.tmpl")}
    assert templates == set(FILES.values())
    for name in ("ox", "m" * MAX_NAME_CHARS):
        one, two = (write_package(name, tmp_path / name / folder) for folder in ("one", "two"))
        assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
        assert not [path for path in one if "$" in path.read_text(encoding="utf-8")]
    for wish in (["check"], ["format", "--check"]):
        run("ruff", *wish, "--no-cache", "--config", CONFIG, tmp_path)


def test_a_name_like_on_stays_a_name(tmp_path):
    write_package("on", tmp_path / "on")
    [recipe] = (tmp_path / "on").rglob("nano.yaml")
    assert yaml.safe_load(recipe.read_text())["env"]["name"] == "on"


def test_existing_files_are_left_alone(tmp_path, monkeypatch):
    kept = tmp_path / "notes.txt"
    kept.write_text("mine")
    (tmp_path / "vault").symlink_to(tmp_path / "elsewhere")
    for place in (tmp_path, kept, tmp_path / "vault", kept / "vault"):
        with pytest.raises(InvalidInput, match=str(place)):
            write_package("vault", place)
    assert kept.read_text() == "mine"
    monkeypatch.chdir(tmp_path)
    assert "'my_env'" in refused("new-env", "my-env")
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "vault"}


def test_without_a_place_it_is_written_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = reflectrl("new-env", "vault")
    assert done.code == 0, done.err
    assert (tmp_path / "vault" / "src" / "vault" / "env.py").is_file()
    assert "pip install -e ./vault\n" in done.out
