"""The notebook of the docs runs in a real kernel, in which an event loop is running while a cell is."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from scripted_endpoint import ScriptedEndpoint
from trained_runs import SMALL

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
REMOTE = """
from reflectrl.config import load_recipe

remote = rl.Run("runs/remote", load_recipe("number_line/nano", {overrides}))
remote.run()
state = rl.Observation("Number 3, target 6.", ("add one", "subtract one"))
print(remote.agent().act(state).reflection)
"""
"""A cell that trains with players at a chat endpoint."""
BRIEF = ("rlft.stages.0.iterations=1", "rlft.episodes=2", "eval.policies=[rlft]", "eval.controls=[]", "eval.episodes=2")


@dataclass(frozen=True)
class Executed:
    """What the cells of code of the notebook have printed and returned, and then one with players at an endpoint."""

    shown: list[str]
    remote: str
    calls: int


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    folder = tmp_path_factory.mktemp("notebook")
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
    kernel = folder / "kernels" / "here" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(json.dumps({**spec, "display_name": "this interpreter"}), encoding="utf-8")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch, ScriptedEndpoint() as endpoint:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("JUPYTER_PATH", str(folder))
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        endpoint.reply = lambda _: "The target is higher."
        asked = [f"{section}.endpoint.base_url={endpoint.url}" for section in ("data", "players.reflector")]
        chosen = ["data.teacher=openai", "data.samples=10", "players.reflector.player=remote", *BRIEF]
        notebook.cells.append(nbformat.v4.new_code_cell(REMOTE.format(overrides=[*SMALL, *asked, *chosen])))
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, kernel_name="here", timeout=500, resources=resources).execute()
        *shown, remote = ("".join(map(text, cell.outputs)) for cell in notebook.cells if cell.cell_type == "code")
        return Executed(shown, remote, len(endpoint.requests))


def text(output: nbformat.NotebookNode) -> str:
    return str(output.get("text") or output.data["text/plain"])


def test_the_notebook_goes_from_data_to_an_agent_that_acts(executed: Executed) -> None:
    *_, successes, table, move = executed.shown
    assert re.search(r"^\[([\d.]+(, )?){12}\]$", successes, re.MULTILINE)
    rates = {name: int(rate) for name, rate in re.findall(r"^(\w+) +sampled +(\d+)%$", table, re.MULTILINE)}
    assert rates["rlft"] >= rates["sft"] > rates["random"]
    assert re.search(r"^\S.* -> add one$", move, re.MULTILINE)


def test_players_at_a_chat_endpoint_speak_in_a_cell_as_well(executed: Executed) -> None:
    assert "The target is higher." in executed.remote.splitlines()
    assert executed.calls > 5


def test_the_notebook_is_kept_without_outputs_and_a_page_links_to_it() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
    assert f"]({NOTEBOOK.name})" in (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
