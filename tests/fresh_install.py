"""The wheel in a new virtual environment, outside the tree, with nothing but what it requires itself.

``make test-wheel`` runs this file with pytest; its name keeps it out of the other tests.
"""

from __future__ import annotations

import json
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from built_wheel import ROOT, build_wheel, run

BRIEF = (
    *("data.samples=200", "sft.reflector.steps=20", "sft.policy.steps=10"),
    *("rlft.lessons.0.iterations=2", "rlft.episodes=4", "eval.episodes=4"),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with an environment in it; removed at the end, as it has gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "new", with_pip=True)
        install = ("-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", build_wheel(folder))
        run(folder / "new/bin/python", *install, cwd=folder, PYTHONPATH="")
        yield folder


def test_the_recipe_of_the_demo_runs_through_all_stages(folder: Path) -> None:
    def reflectrl(*words: str) -> str:
        return run(folder / "new/bin/reflectrl", *words, cwd=folder, PYTHONPATH="", OMP_NUM_THREADS="1")

    assert "What every recipe needs is here." in reflectrl("doctor")
    reflectrl("run", "--recipe", "safe/nano", "--run", "brief", *BRIEF)
    rows = [json.loads(line) for line in (folder / "runs/brief/eval.jsonl").read_text().splitlines()]
    assert {"random", "sft", "rlft", "expert"} <= {row.get("policy") for row in rows}
    reflectrl("report", "runs/brief", "--episode")
    assert "<html" in (folder / "runs/brief/report.html").read_text(encoding="utf-8")
