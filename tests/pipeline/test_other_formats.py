"""Folders of another format are refused in one sentence that names the version that wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trained_runs import play_stages

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.origin import FORMAT
from reflectrl.pipeline.agent import load_agent
from reflectrl.pipeline.folder import RunFolder, read_recipe
from reflectrl.pipeline.live_explore import trained as explorer
from reflectrl.pipeline.live_play import trained
from reflectrl.report import report
from reflectrl.share.export import export_run
from reflectrl.share.server import load_served_agent

RECIPE = load_recipe("number_line/nano")
DOORS: dict[str, Callable[[Path], object]] = {
    "run": lambda folder: play_stages(RECIPE, folder),
    "report": lambda folder: report([folder]),
    "play": lambda folder: trained(folder, None, {}),
    "explore": explorer,
    "serve": load_served_agent,
    "export": lambda folder: export_run(folder, folder / "again"),
    "load_agent": load_agent,
}
WRITERS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "older": ({"format": FORMAT - 1, "reflectrl": "0.0.7"}, f"reflectrl 0.0.7 in the format {FORMAT - 1}"),
    "newer": ({"format": FORMAT + 1, "reflectrl": "99.1"}, f"reflectrl 99.1 in the format {FORMAT + 1}"),
    "unknown": (None, "without a number"),
}


@pytest.mark.parametrize(
    ("door", "writer"), [*((door, "newer") for door in DOORS), ("run", "older"), ("run", "unknown")]
)
def test_a_run_of_another_format_is_refused(door: str, writer: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).begin(RECIPE, "gen-data")
    ledger, (written_by, fact) = tmp_path / "stages.json", WRITERS[writer]
    ledger.write_text(json.dumps({**json.loads(ledger.read_text()), "written_by": written_by}))
    with pytest.raises(InvalidInput, match=fact) as caught:
        DOORS[door](tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("door", ["play", "serve", "load_agent"])
def test_an_export_of_another_format_is_refused(door: str, tmp_path: Path) -> None:
    described = {"env": "number_line", "options": {}, "prompt": {}, "max_actions": 2}
    written_by, fact = WRITERS["newer"]
    agent = {"format": "reflectrl-agent", "written_by": written_by, **described}
    (tmp_path / "agent.json").write_text(json.dumps(agent) + "\n")
    with pytest.raises(InvalidInput, match=fact):
        DOORS[door](tmp_path)


def test_a_run_keeps_its_first_writer(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.begin(RECIPE, "gen-data")
    first = json.loads((tmp_path / "stages.json").read_text())["written_by"]
    folder.begin(RECIPE, "sft")
    assert json.loads((tmp_path / "stages.json").read_text())["written_by"] == first
    assert first["format"] == FORMAT
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(recipe.read_text() + "forgotten_key: 1\n")
    with pytest.raises(InvalidInput, match="forgotten_key"):
        read_recipe(tmp_path)
