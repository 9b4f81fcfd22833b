"""The README's Python is run and its numbers are checked; its commands are parsed by ``tests/test_docs.py``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def block_with(words: str) -> str:
    (block,) = [block for block in BLOCKS if words in block]
    return block


def run(block: str) -> None:
    exec(compile(block, "README.md", "exec"), {})


def test_the_environment_of_the_readme_passes_check_env_in_forty_lines():
    block = block_with("check_env(Vault())")
    assert len([line for line in block.splitlines() if line.strip()]) <= 40
    run(block)


def test_the_sandbox_of_the_readme_shows_what_it_says(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    run(block_with("with Sandbox("))
    head, changes = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert head.strip() == "\n".join((ROOT / "recipes/auto_explore/nano.yaml").read_text().splitlines()[:3])
    assert f"# {changes};" in block_with("with Sandbox(")
    assert not (ROOT / "recipes/auto_explore/notes.md").exists()


def test_the_readme_begins_with_the_demo_and_the_tests_and_its_make_targets_exist():
    given = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)
    assert given[:2] == ["demo", "test"]
    named = {*given, *re.findall(r"`make ([\w-]+)", README)}
    assert named <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_every_python_block_is_run():
    assert len(BLOCKS) == 2


@pytest.mark.parametrize("mark", ["dangerous_taxi_short", "engine_whole"])
def test_the_measured_tables_are_the_benchmark_s_own(mark):
    shown = README.partition(f"<!-- {mark} -->\n")[2].partition("<!-- end -->")[0].strip()
    assert shown
    assert shown in (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md"])
def test_every_measured_table_names_its_commit(page):
    made = re.findall(r"^Made on .*$", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert made
    assert [line for line in made if not re.search(r"commit [0-9a-f]{7}", line)] == []


def test_the_engine_s_speed_is_the_measured_one():
    table = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").partition("<!-- alfworld_engine -->")[2]
    (stock, ours), *_ = re.findall(r"a step of random play \| (\S+) \([^)]*\) \| (\S+) ", table)
    claim = " ".join(README.split())
    assert f"{ours} processor milliseconds at the median instead of {stock} " in claim
