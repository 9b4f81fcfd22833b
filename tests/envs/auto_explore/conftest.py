from __future__ import annotations

import tempfile

import pytest


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """The folder in which copies are made."""
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
