from __future__ import annotations

import faulthandler
import gc
import tempfile
from pathlib import Path

import pytest
from sandbox_world import World

DEADLINE_S = 300
"""Seconds within which a test of escapes is over, on a busy machine."""


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The folder in which copies are made."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def shop(tmp_path):
    folder = tmp_path / "shop"
    for path, text in {
        "README.md": "# shop\nsells\ntea\n",
        "people/leave/athens.md": "sick notes go to Wanda\n",
        "people/two words.md": "spaced\n",
        "people/it's.md": "quoted\n",
        ".env": "hidden",
        ".git/config": "hidden",
    }.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.fixture
def open_files():
    """Counts the open files of this process; what other tests left behind is not closed meanwhile."""
    gc.disable()
    yield lambda: len(list(Path("/proc/self/fd").iterdir()))
    gc.enable()


@pytest.fixture
def deadline():
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def world(tmp_path, copies):  # noqa: ARG001 - where its sandbox is
    """A world to be opened; it is checked when the test is over."""
    made = World(tmp_path)
    yield made
    made.close()
