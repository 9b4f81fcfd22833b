"""The record of the software and hardware with which a run folder was started."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.origin import commit_of, read_origin, this_origin
from reflectrl.pipeline.folder import RunFolder


def test_a_run_folder_keeps_the_surroundings_in_which_it_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    recipe, run = load_recipe("number_line/nano"), RunFolder(tmp_path)
    run.begin(recipe, "gen-data")
    begun = read_origin(tmp_path)
    assert begun == this_origin()
    assert (begun.environment["ATEN_CPU_CAPABILITY"], begun.versions["torch"][:2]) == ("default", "2.")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    run.begin(recipe, "sft")
    assert read_origin(tmp_path) == begun
    assert f"reflectrl {begun.reflectrl}" in str(begun)
    assert begun.hardware in str(begun)


def test_a_folder_without_a_ledger_has_no_origin(tmp_path: Path) -> None:
    assert read_origin(tmp_path) is None
    for written in ({"date": 7}, None):
        (tmp_path / "stages.json").write_text(json.dumps({"written_by": written}))
        with pytest.raises(InvalidInput, match=r"stages\.json"):
            read_origin(tmp_path)


def test_only_a_checkout_has_a_commit(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        return subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True).stdout

    assert commit_of(tmp_path) == ""
    git("init")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "a.py").touch()
    (tmp_path / "site-packages").mkdir()
    git("add", "package")
    git("commit", "--message", "Add")
    assert commit_of(tmp_path / "package") == git("rev-parse", "--short", "HEAD").strip()
    assert commit_of(tmp_path / "site-packages") == ""
    (tmp_path / "package" / "README.md").write_text("old\n")
    git("add", "package")
    git("commit", "--message", "Add a page")
    for name, suffix in (("README.md", ""), ("a.py", "-dirty")):  # a page may name the results of the code
        (tmp_path / "package" / name).write_text("new\n")
        commit_of.cache_clear()
        assert commit_of(tmp_path / "package") == git("rev-parse", "--short", "HEAD").strip() + suffix
