"""The notebooks of the docs run in a real kernel, in which an event loop is running while a cell is."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from faulty import wait_until
from nbclient import NotebookClient
from nbformat import NotebookNode
from scripted_endpoint import ScriptedEndpoint
from trained_runs import SMALL

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = ("notebook.ipynb", "arms.ipynb")
REMOTE = """
from reflectrl.config import load_recipe

remote = rl.Run("runs/remote", load_recipe("number_line/nano", {overrides}))
remote.run()
state = rl.Observation("Number 3, target 6.", ("add one", "subtract one"))
print(remote.agent().act(state).reflection)
"""
"""A cell that trains with players at a chat endpoint."""
BRIEF = (
    "rlft.lessons.0.iterations=1",
    "rlft.episodes=2",
    "eval.policies=[rlft]",
    "eval.controls=[]",
    "eval.episodes=2",
)
WITHOUT_WIDGETS = "import sys; sys.modules['ipywidgets'] = None"
SHORTER = '"sft.reflector.steps": 2, "rlft.lessons.0.iterations": 1, "rlft.episodes": 8, "eval.episodes": 8'
WIDGET = "application/vnd.jupyter.widget-view+json"
LONG = """
import os, reflectrl as rl
from reflectrl.config import load_recipe

run = rl.Run("runs/long", load_recipe("number_line/nano", {overrides}))
run.gen_data()
run.sft()
print(os.getpid())
"""


@contextmanager
def kernel(notebook: NotebookNode, folder: Path) -> Iterator[NotebookClient]:
    """Start a kernel of this interpreter, whose files are in ``folder``, to execute cells of a notebook."""
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "language": "python"}
    file = folder / "kernels" / "here" / "kernel.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**spec, "display_name": "this interpreter"}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("JUPYTER_PATH", str(folder))
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
            patch.setenv(name, str(folder / name))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        resources = {"metadata": {"path": str(folder)}}
        client = NotebookClient(notebook, kernel_name="here", timeout=900, resources=resources, allow_errors=True)
        with client.setup_kernel():
            yield client


def execute(notebook: NotebookNode, folder: Path) -> list[NotebookNode]:
    """Execute all cells, and return those of code."""
    with kernel(notebook, folder) as client:
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [each for cell in code for each in cell.outputs if each.output_type == "error"] == []
    return code


def said(cell: NotebookNode) -> str:
    return "".join(str(each.get("text") or each.get("data", {}).get("text/plain", "")) for each in cell.outputs)


def html(cell: NotebookNode) -> str:
    """Return what the last value of a cell shows of itself."""
    [shown] = [each.data["text/html"] for each in cell.outputs if each.output_type == "execute_result"]
    return str(shown)


def kinds(cells: Sequence[NotebookNode]) -> set[str]:
    return {kind for cell in cells for each in cell.outputs for kind in each.get("data", {})}


@dataclass(frozen=True)
class Executed:
    """The cells of code of the first notebook, then one with players at an endpoint."""

    cells: list[NotebookNode]
    remote: str
    calls: int


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Executed:
    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    with ScriptedEndpoint() as endpoint:
        endpoint.reply = lambda _: "The target is higher."
        asked = [f"{section}.endpoint.base_url={endpoint.url}" for section in ("data", "players.reflector")]
        chosen = ["data.teacher=openai", "data.samples=10", "players.reflector.player=remote", *BRIEF]
        notebook.cells.append(nbformat.v4.new_code_cell(REMOTE.format(overrides=[*SMALL, *asked, *chosen])))
        *cells, remote = execute(notebook, tmp_path_factory.mktemp("notebook"))
        return Executed(cells, said(remote), len(endpoint.requests))


def test_a_notebook_goes_from_an_own_environment_to_an_agent_that_acts(executed: Executed) -> None:
    *_, metrics, episode, rows, run, agent = executed.cells
    assert "rollout/success" in html(metrics)
    assert "degrees, wanted" in html(episode)
    rates = dict(re.findall(r"<td>(\w+)</td><td><span class=\"rate\">(\d+)%[^<]*</span>.{,200}?sampled", html(rows)))
    assert int(rates["rlft"]) > int(rates["random"])
    assert "Success rate" in html(run)
    assert html(rows).partition("<table")[2].partition("</table>")[0] in html(run)
    assert "LMReflector" in html(agent)
    assert re.search(r"^It is too cold. -> heat$", said(agent), re.MULTILINE)


def test_progress_is_a_widget_where_there_are_widgets(executed: Executed) -> None:
    assert WIDGET in kinds(executed.cells)
    assert "rlft               done in" in "".join(map(said, executed.cells))


def test_players_at_a_chat_endpoint_speak_in_a_cell_as_well(executed: Executed) -> None:
    assert "The target is higher." in executed.remote.splitlines()
    assert executed.calls > 5


def test_a_notebook_compares_two_arms_without_widgets(tmp_path: Path) -> None:
    notebook = nbformat.read(DOCS / "arms.ipynb", as_version=4)
    notebook.cells[1].source = notebook.cells[1].source.replace("}\nruns", f", {SHORTER}}}\nruns")
    assert SHORTER in notebook.cells[1].source
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WITHOUT_WIDGETS))
    *cells, comparison, numbers = execute(notebook, tmp_path)
    assert WIDGET not in kinds(cells)
    assert "".join(map(said, cells)).count("rlft               done in") == 4
    assert "Comparison" in html(comparison)
    assert re.findall(r"number_line-nano\w*", said(numbers)) == ["number_line-nano", "number_line-nano_grpo"]
    assert all(f"{arm}-{seed}" in html(numbers) for arm in ("batch", "grpo") for seed in (0, 1))


def test_a_cell_that_was_interrupted_goes_on_when_it_is_run_again(tmp_path: Path) -> None:
    short = [*SMALL, "rlft.lessons.0.iterations=60", "rlft.save_every=1000"]
    cell = "iterations = run.rlft(); print(len(iterations), len(run.metrics()))"
    sources = [LONG.format(overrides=short), cell, cell]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with kernel(notebook, tmp_path) as client:
        process = int(said(client.execute_cell(notebook.cells[0], 0)).split()[-1])
        metrics = tmp_path / "runs" / "long" / "metrics.jsonl"
        interrupt = threading.Thread(
            target=lambda: (wait_until(metrics.exists), os.kill(process, signal.SIGINT)), daemon=True
        )
        interrupt.start()
        client.execute_cell(notebook.cells[1], 1)
        interrupt.join()
        [error] = [each for each in notebook.cells[1].outputs if each.output_type == "error"]
        assert error.ename == "KeyboardInterrupt"
        done = len(metrics.read_text().splitlines())
        assert 0 < done < 60
        assert len(list((metrics.parent / "checkpoints" / "rlft").glob("checkpoint-*"))) == 1
        client.execute_cell(notebook.cells[2], 2)
    assert "60 60" in said(notebook.cells[2])


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs_and_a_page_links_to_it(name: str) -> None:
    notebook = nbformat.read(DOCS / name, as_version=4)
    nbformat.validate(notebook)
    assert [cell.outputs for cell in notebook.cells if cell.cell_type == "code" and cell.outputs] == []
    assert f"]({name})" in (DOCS / "python.md").read_text(encoding="utf-8")
