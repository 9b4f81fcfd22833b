"""Run the tutorial: write its files, execute its Python code and commands in order, and compare the outputs."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_line import reflectrl

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
OFFLINE = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", "site"]


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    text: str
    shown: str | None
    """Output on the page; ``None`` if it shows none."""


def blocks() -> Iterator[Block]:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert page.count("```") == 2 * len(FENCE.findall(page)), "a fence of another form"
    found = FENCE.findall(page)
    for (language, title, text), (following, _, output) in zip(found, [*found[1:], ("", "", "")], strict=True):
        if language != "text":
            yield Block(language, title, text, output if following == "text" else None)


BLOCKS = list(blocks())


def run(words: list[str], folder: Path) -> str:
    """Run a Python program that has to succeed, and return its output."""
    # as in an editable install: the metadata that pip wrote, and the code where it is edited
    path = os.pathsep.join(str(folder / part) for part in ("lift/src", "site"))
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def matches(output: str, shown: str) -> bool:
    """Return whether an output matches the page, where ``...`` matches anything."""
    pattern = re.escape(shown.strip()).replace(re.escape("..."), ".*")
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


class Reader:
    """A reader who follows the page in an empty folder; the library's commands and Python code run in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: set[str] = set()

    def do(self, block: Block) -> str:
        """Follow a block, and return its output; a file's first block creates the file, later ones are appended."""
        if block.title:
            self.write(block)
            return ""
        if block.language == "python":
            self.forget()
            out = io.StringIO()
            with contextlib.redirect_stdout(out), warnings.catch_warnings(action="ignore"):
                exec(compile(block.text, "tutorial.md", "exec"), {"__name__": "tutorial"})
            return out.getvalue()
        assert block.language == "bash", f"{block.language} is not run"
        return "".join(self.command(line) for line in block.text.splitlines() if line.strip())

    def command(self, line: str) -> str:
        """Run a line of a bash block; pip uses no index, and installs outside of this Python's packages."""
        program, *words = shlex.split(line, comments=True)
        if program == "pip":
            install, editable, folder = words
            assert (install, editable, folder[:2]) == ("install", "-e", "./")  # otherwise pip would take it for a name
            return run(["pip", "install", *OFFLINE, folder], self.folder)
        if program == "pytest":
            return run(["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *words], self.folder)
        assert program == "reflectrl", f"{program} is not a command of this page"
        self.forget()
        done = reflectrl(*words)
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
        return done.out

    def forget(self) -> None:
        """Make this process import the game again, as a new process would."""
        for name in [name for name in sys.modules if name.partition(".")[0] == "lift"]:
            del sys.modules[name]
        importlib.invalidate_caches()

    def write(self, block: Block) -> None:
        path = self.folder / block.title
        with path.open("a" if block.title in self.files else "w", encoding="utf-8") as file:
            file.write(block.text)
        self.files.add(block.title)
        if block.language == "python":
            compile(path.read_text(encoding="utf-8"), path, "exec")


@pytest.mark.slow
def test_every_block_runs_in_order_and_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {block.language for block in BLOCKS} == {"python", "bash", "yaml"}
    assert sum(block.shown is not None for block in BLOCKS) >= 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # changes within one second are not noticed
    for part in ("site", "lift/src"):
        monkeypatch.syspath_prepend(tmp_path / part)
    reader = Reader(tmp_path)
    for block in BLOCKS:
        printed = reader.do(block)
        if block.shown is not None:
            assert matches(printed, block.shown), f"{block.text}\nprints\n{printed}\nand not\n{block.shown}"
    (recipe,) = [block for block in BLOCKS if block.title.endswith(".yaml")]
    assert "iterations: 40" in reader.command(f"reflectrl recipes show {recipe.title}")
    game = str(tmp_path / "lift" / "src" / "lift" / "env.py")
    for wish in (["check"], ["format", "--check"]):
        run(["ruff", *wish, "--no-cache", "--config", str(ROOT / "pyproject.toml"), game], ROOT)
