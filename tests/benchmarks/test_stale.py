"""Stale tables are found by the history of a repository, here a small one."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from types import FrameType

import pytest
from engine import ours
from engine_sides import case, computing
from stale import MADE_FROM, ROOT, TABLES, UNTIMED, UNUSED, Table, faults, tables, verdict
from trained_runs import play_stages, small_recipe

NUMBERS = "| who | success |\n|---|---|\n| random | 3 |\n"
FEW = ("data.samples=40", "sft.policy.steps=1", "rlft.stages.0.iterations=1", "rlft.episodes=2", "eval.episodes=2")
PATHS = {"learning": ("room", "recipes/*.yaml"), "others": ()}


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True).stdout


def commit(folder: Path, **files: str) -> str:
    """Write and commit files, and return the commit; names have __ for / and no .py at the end."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--message", "Change", "--allow-empty")
    return git(folder, "rev-parse", "--short", "HEAD").strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "nano.yaml").write_text("gamma: 1\n")
    return tmp_path


def judged(folder: Path, content: str, mark: str = "learning") -> str:
    """Return the faults found on a page with this table."""
    (folder / "README.md").write_text(f"# Results\n\n<!-- {mark} -->\n{content}<!-- end -->\n")
    [table] = tables(folder, PATHS)
    return verdict(folder, table, PATHS.get(table.name, ()))


def test_a_table_is_stale_once_its_rooms_or_its_recipe_changed_in_what_they_mean(repository: Path) -> None:
    content = f"Made at commit {commit(repository, room__a='x = 1')}.\n\n{NUMBERS}"
    assert judged(repository, content) == ""
    commit(repository, room__a='"""A room."""\n\nx = (  # one\n    1\n)\n', other__a="y = 1")
    (repository / "recipes" / "nano.yaml").write_text("# why\ndescription: slow\ngamma:   1\n")
    assert judged(repository, content) == ""
    (repository / "recipes" / "nano.yaml").write_text("gamma: 0.9\n")
    assert "recipes/nano.yaml changed" in judged(repository, content)


@pytest.mark.parametrize("change", [{"room__a": "x = 2"}, {"room__new": ""}])
def test_a_changed_or_new_file_of_a_room_is_named(repository: Path, change: dict[str, str]) -> None:
    content = f"Made at commit {commit(repository, room__a='x = 1')}.\n\n{NUMBERS}"
    commit(repository, **change)
    [name] = change
    assert f"room/{name.removeprefix('room__')}.py changed" in judged(repository, content)


def test_a_table_without_a_true_commit_is_an_error_but_for_numbers_of_others(repository: Path) -> None:
    made = commit(repository)
    assert "name the commit" in judged(repository, NUMBERS)
    assert "uncommitted" in judged(repository, f"At commit {made}-dirty.\n\n{NUMBERS}")
    assert "lacks commit 1234567" in judged(repository, f"At commit {made}, commit 1234567.\n\n{NUMBERS}")
    assert "TABLES" in judged(repository, f"At commit {made}.\n\n{NUMBERS}", mark="unknown")
    assert judged(repository, NUMBERS, mark="others") == ""


def test_a_table_made_from_others_is_stale_with_them(repository: Path) -> None:
    content = f"Made at commit {commit(repository, room__a='x = 1')}.\n\n{NUMBERS}"
    pages = "".join(f"<!-- {mark} -->\n{content}<!-- end -->\n" for mark in ("learning", "short"))
    (repository / "README.md").write_text(pages)
    declared, made_from = {**PATHS, "short": ()}, {"short": ["learning"]}
    assert faults(repository, declared, made_from) == {}
    commit(repository, room__a="x = 2")
    found = faults(repository, declared, made_from)
    assert {table.name: "made from learning" in why for table, why in found.items()} == {
        "learning": False,
        "short": True,
    }


def test_a_table_of_numbers_outside_of_marks_is_found_and_one_of_words_is_not(repository: Path) -> None:
    words = "| option | what it does |\n|---|---|\n| seed | 1 of many |\n| gamma | the discount |\n"
    (repository / "README.md").write_text(f"{words}\n{NUMBERS}")
    assert [table.name for table in tables(repository, PATHS)] == ["the table '| who | success |'"]


def called(work: Callable[[], object]) -> set[str]:
    """Return the files of this repository with functions that ``work`` calls, and the functions as ``FILE::NAME``."""
    calls: set[tuple[str, str]] = set()

    def look(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a function, not an import
            calls.add((frame.f_code.co_filename, frame.f_code.co_name))

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    paths = [(Path(file).resolve(), name) for file, name in calls if file.endswith(".py")]
    ours = {(path.relative_to(ROOT).as_posix(), name) for path, name in paths if path.is_relative_to(ROOT)}
    return {file for file, _ in ours} | {f"{file}::{name}" for file, name in ours}


def own(paths: Iterable[str]) -> set[str]:
    """Return paths as they are named after links are followed."""
    parts = [path.partition("::") for path in paths]
    assert all(f"def {name}(" in (ROOT / file).read_text() for file, _, name in parts if name)
    return {(ROOT / file).resolve(strict=True).relative_to(ROOT).as_posix() + mark + name for file, mark, name in parts}


def test_a_changed_function_that_no_expert_s_recipe_calls_matters_only_to_tables_that_name_its_module(
    repository: Path,
) -> None:
    module = "reflectrl/models/adapters.py"
    assert f"{module}::add_lora" in UNUSED
    (repository / module).parent.mkdir(parents=True)

    def adapters(lora: int, quantised: int) -> None:
        functions = f"def add_lora():\n    return {lora}\n\ndef quantization_config():\n    return {quantised}\n"
        (repository / module).write_text(functions)

    adapters(1, 1)
    table = Table("README.md", "learning", (commit(repository),))
    adapters(2, 1)
    assert verdict(repository, table, ["reflectrl/models"]) == ""
    assert f"{module} changed" in verdict(repository, table, ["reflectrl/models", module])
    adapters(1, 2)
    assert f"{module} changed" in verdict(repository, table, ["reflectrl/models"])


@pytest.mark.slow
def test_no_stage_of_an_expert_s_recipe_calls_what_counts_as_unused(tmp_path: Path) -> None:
    files = called(lambda: play_stages(small_recipe(*FEW), tmp_path))
    assert "reflectrl/prompts/discretion.py" in files
    assert files & own(UNUSED) == set()


@pytest.mark.slow
def test_what_the_engine_s_benchmarks_measure_calls_no_module_that_counts_as_not_measured() -> None:
    with case("nano", "dangerous_taxi", "first", 2) as made:
        players = [computing(made.reader, "float32", frozen=frozen) for frozen in (True, False)]
        works = ours("ours", made.episodes, *players)
        files = called(lambda: [work.call() for work in works.values()])
    assert {"reflectrl/engine/prefix_cache.py", "reflectrl/engine/sequences.py"} <= files
    assert files & own(UNTIMED) == set()


def test_every_published_table_is_declared_and_names_its_commit_and_none_is_declared_in_vain() -> None:
    published = list(tables(ROOT))
    assert [f"{table.page}, {table.name}: {table.fault}" for table in published if table.fault] == []
    assert {table.name for table in published} == {*TABLES}
    assert {*MADE_FROM, *chain.from_iterable(MADE_FROM.values())} <= {*TABLES}
    for paths in TABLES.values():
        assert [path for path in paths if not any(ROOT.glob(path))] == []
