"""The tutorial is run: its files written, its Python and its commands executed in order, its outputs compared."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
OFFLINE = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", "site"]


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str
    shown: str | None
    """What the page says it prints; ``None`` where it says nothing."""


def blocks() -> Iterator[Block]:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert page.count("```") == 2 * len(FENCE.findall(page)), "a fence of another form"
    found = FENCE.findall(page)
    for (language, title, text), (following, _, output) in zip(found, [*found[1:], ("", "", "")], strict=True):
        if language != "text":
            yield Block(language, title, text, output if following == "text" else None)


BLOCKS = list(blocks())


def command(line: str) -> list[str]:
    """A line of a bash block as a program's arguments; pip asks no index and installs beside, not into, this Python."""
    program, *words = shlex.split(line, comments=True)
    if program == "pip":
        install, editable, folder = words
        assert (install, editable, folder[:2]) == ("install", "-e", "./")  # else pip would take it for a name
        return [sys.executable, "-m", "pip", "install", *OFFLINE, folder]
    if program == "pytest":
        return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words]
    if program == "python":
        return [sys.executable, *words]
    assert program == "reflectrl", f"{program} is no command of this page"
    return [sys.executable, "-m", "reflectrl", *words]


def run(words: list[str], folder: Path) -> str:
    # what an editable install does: the metadata that pip wrote, the code where it is edited
    path = os.pathsep.join(str(folder / part) for part in ("lift/src", "site"))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def matches(output: str, shown: str) -> bool:
    """Equal, but ``...`` stands for anything."""
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


class Reader:
    """Somebody who does what the page says, in an empty folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: set[str] = set()

    def do(self, block: Block) -> str:
        """What it prints. A file's first block begins it anew, the others go on with it."""
        if block.title:
            self.write(block)
            return ""
        if block.language == "python":
            return run([sys.executable, "-c", block.text], self.folder)
        assert block.language == "bash", f"{block.language} is not run"
        return "".join(run(command(line), self.folder) for line in block.text.splitlines() if line.strip())

    def write(self, block: Block) -> None:
        path = self.folder / block.title
        with path.open("a" if block.title in self.files else "w", encoding="utf-8") as file:
            file.write(block.text)
        self.files.add(block.title)
        if block.language == "python":
            compile(path.read_text(encoding="utf-8"), path, "exec")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(tmp_path_factory.mktemp("tutorial"))


def test_there_is_something_to_run() -> None:
    assert {block.language for block in BLOCKS} == {"python", "bash", "yaml"}
    assert len(BLOCKS) > 12
    assert sum(block.shown is not None for block in BLOCKS) >= 5


@pytest.mark.slow
def test_every_block_runs_in_order_and_prints_what_the_page_says(reader: Reader) -> None:
    for block in BLOCKS:
        printed = reader.do(block)
        if block.shown is not None:
            assert matches(printed, block.shown), f"{block.text}\nprints\n{printed}\nand not\n{block.shown}"


@pytest.mark.slow
def test_the_game_is_clean_when_it_is_finished(reader: Reader) -> None:
    game = reader.folder / "lift" / "src" / "lift" / "env.py"
    for wish in (["check"], ["format", "--check"]):
        run(
            [sys.executable, "-m", "ruff", *wish, "--no-cache", "--config", str(ROOT / "pyproject.toml"), str(game)],
            ROOT,
        )


@pytest.mark.slow
def test_the_whole_recipe_of_the_page_is_one_that_can_be_run(reader: Reader) -> None:
    (shown,) = [block for block in BLOCKS if block.title.endswith(".yaml")]
    told = run(command(f"reflectrl recipes show {shown.title}"), reader.folder)
    assert "iterations: 40" in told


@pytest.mark.parametrize(
    ("shown", "fits"), [("a\n...\nc", True), ("a", False), ("a\nb\nc", True), ("...b", False), ("a\nb", False)]
)
def test_an_output_is_compared_whole(shown: str, fits: bool) -> None:
    assert matches("a\nb\nc\n", shown) == fits
