"""``reflectrl serve``: refusals before anything is served, beside those in test_sentences."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from command_line import refused

from reflectrl.config import dump_recipe, load_recipe


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder in which nothing was trained yet."""
    (tmp_path / "recipe.yaml").write_text(dump_recipe(load_recipe("number_line/nano")))
    return tmp_path


def test_runs_that_cannot_be_served_are_refused(run: Path) -> None:
    assert "reflectrl sft" in refused("serve", run, "--port", 0)
    (run / "recipe.yaml").write_text(dump_recipe(load_recipe("number_line/nano", ["players.reflector.player=expert"])))
    assert "players.reflector.player" in refused("serve", run, "--port", 0)


def test_an_address_or_a_key_that_cannot_be_used_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for host in ("192.0.2.1", "no such host", "127.0.0.1"):
            assert f"{host} port {port}" in refused("serve", run, "--host", host, "--port", port)
    for name in ("agents.example:8000", "http://agents.example", ""):
        assert f"--served-as {name!r}" in refused("serve", run, "--served-as", name, "--port", 0)
    for key in ("two\nlines", "schlüssel"):
        monkeypatch.setenv("SERVE_KEY", key)
        sentence = refused("serve", run, "--api-key-env", "SERVE_KEY", "--port", 0)
        assert "SERVE_KEY" in sentence
        assert "schl" not in sentence


def test_without_the_extra_a_sentence_names_it(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    sentence = refused("serve", run)
    assert sentence.count("\n") == 1
    assert "reflectrl[serve]" in sentence
