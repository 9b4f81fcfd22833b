"""The page "From Python" is run, from an environment of its own to an evaluated agent, in one process."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reflectrl.core import registry

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.slow
def test_every_block_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(registry._TARGETS, "corridor", "")
    monkeypatch.delitem(registry._TARGETS, "corridor")
    names: dict[str, object] = {"__name__": "corridor_page"}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the page's own code
    printed = capsys.readouterr().out
    assert len(re.findall(r"^\d+ [\d.]+ -?[\d.]+$", printed, re.MULTILINE)) == 4
    assert "rlft sampled" in printed
    assert (tmp_path / "runs" / "corridor" / "policy").is_dir()
