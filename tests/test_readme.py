"""The README's Python is run and its numbers are checked; its commands are parsed by ``tests/test_docs.py``."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def run(words: str) -> str:
    """Run the block that holds ``words``, and return it."""
    (block,) = [block for block in BLOCKS if words in block]
    exec(compile(block, "README.md", "exec"), {})
    return block


def test_both_python_blocks_run_and_show_what_they_say(monkeypatch, capsys):
    assert len(BLOCKS) == 2
    assert len([line for line in run("check_env(Vault())").splitlines() if line.strip()]) <= 40
    capsys.readouterr()
    monkeypatch.chdir(ROOT)
    block = run("with Sandbox(")
    head, changes = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    assert head.strip() == "\n".join((ROOT / "recipes/auto_explore/nano.yaml").read_text().splitlines()[:3])
    assert f"# {changes};" in block
    assert not (ROOT / "recipes/auto_explore/notes.md").exists()


def test_measured_tables_and_numbers_are_the_benchmarks_own_and_name_their_commit():
    for mark in ("dangerous_taxi_short", "engine_whole"):
        shown = README.partition(f"<!-- {mark} -->\n")[2].partition("<!-- end -->")[0].strip()
        assert shown
        assert shown in MEASURED
    for page in (README, MEASURED):
        made = re.findall(r"^Made on .*$", page, flags=re.MULTILINE)
        assert made
        assert [line for line in made if not re.search(r"commit [0-9a-f]{7}", line)] == []
    table = MEASURED.partition("<!-- alfworld_engine -->")[2]
    (stock, ours), *_ = re.findall(r"a step of random play \| (\S+) \([^)]*\) \| (\S+) ", table)
    assert f"{ours} processor milliseconds at the median instead of {stock} " in " ".join(README.split())


def test_the_readme_begins_with_the_demo_and_the_tests_and_its_make_targets_exist():
    given = re.findall(r"^    make (\w+)", README, flags=re.MULTILINE)
    assert given[:2] == ["demo", "test"]
    named = {*given, *re.findall(r"`make ([\w-]+)", README)}
    assert named <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
