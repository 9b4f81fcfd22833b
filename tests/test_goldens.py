"""Twelve tiny runs compute what they computed before: SHA-256 of rows, metrics, weights and results, pinned in a file.

They guard a change that should not change numbers, such as a move of code; that training still learns is checked by the
learning tests. ``goldens.json`` holds the digests, and the versions and the kind of processor that they depend on: the
test is skipped where these differ. Other x86-64 processors should give the same digests, because the runs use oneDNN
nowhere, and elsewhere code that does not depend on the processor; see ``ROUNDING`` in ``golden_runs.py``.

If a change is meant to change numbers, pin them again, and say in the commit which runs changed and why::

    REFLECTRL_WRITE_GOLDENS=1 pytest tests/test_goldens.py
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from golden_runs import ARTEFACTS, ROUNDING, RUNS, digests
from safetensors.numpy import save_file

GOLDENS = Path(__file__).with_name("goldens.json")
PACKAGES = ("accelerate", "numpy", "tokenizers", "torch", "transformers", "trl")
PIN_AGAIN = "If this was meant: REFLECTRL_WRITE_GOLDENS=1 pytest tests/test_goldens.py"


def made_with() -> dict[str, str]:
    """Return the versions that the digests depend on; ``sum`` and ``exp`` differ between Pythons and C libraries."""
    packages = {name: version(name).partition("+")[0] for name in PACKAGES}
    return {
        "machine": platform.machine(),
        "C library": " ".join(platform.libc_ver()),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **packages,
    }


def train(folder: Path, names: list[str]) -> dict[str, dict[str, str]]:
    """Train runs in a process of their own, with fixed rounding, and return their digests."""
    script = Path(__file__).with_name("golden_runs.py")
    command = [sys.executable, str(script), str(folder), *names]
    done = subprocess.run(command, env={**os.environ, **ROUNDING}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, str]] = json.loads((folder / "digests.json").read_text())
    return found


def changes(pinned: Mapping[str, Mapping[str, str]], found: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a sentence for each run with other digests, which names the first artefact that changed."""
    said = []
    for name, now in found.items():
        others = [artefact for artefact in ARTEFACTS if pinned.get(name, {}).get(artefact) != now[artefact]]
        if others:
            further = f", and then {', '.join(others[1:])}" if others[1:] else ""
            said.append(f"{name}: {others[0]} changed first{further}")
    return said


def test_the_first_changed_artefact_of_each_run_is_named() -> None:
    pinned = {name: dict.fromkeys(ARTEFACTS, "0") for name in ("taxi", "rater")}
    found = {"taxi": {**pinned["taxi"], "weights": "1", "metrics": "1"}, "rater": pinned["rater"]}
    assert changes(pinned, found) == ["taxi: metrics changed first, and then weights"]
    assert changes({}, {"new": pinned["taxi"]}) == [f"new: rows changed first, and then {', '.join([*ARTEFACTS][1:])}"]


def test_a_digest_depends_on_values_and_not_on_how_they_are_saved(tmp_path: Path) -> None:
    def saved(weight: float, step: float, **metadata: str) -> dict[str, str]:
        (tmp_path / "policy").mkdir(exist_ok=True)
        tensors = {"a": np.float32([1, weight]), "b": np.ones((2, 1), np.float32)}
        save_file(tensors, tmp_path / "policy" / "model.safetensors", metadata)
        line = {"loss": step, "rated": None} if metadata else {"loss": step}
        (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
        return digests(tmp_path)

    first = saved(2.0, 0.5)
    assert saved(2.0, 0.5, format="pt") == first
    assert changes({"run": first}, {"run": saved(2.0000002, 0.5)}) == ["run: weights changed first"]
    assert changes({"run": first}, {"run": saved(2.0, 0.25)}) == ["run: metrics changed first"]


@pytest.mark.slow
def test_tiny_runs_compute_what_they_computed_before(tmp_path: Path) -> None:
    writing, here = "REFLECTRL_WRITE_GOLDENS" in os.environ, made_with()
    there, pinned = json.loads(GOLDENS.read_text()).values()
    others = [f"{name} {here[name]} instead of {made}" for name, made in there.items() if here[name] != made]
    if others and not writing:
        pytest.skip(f"goldens.json was made with other versions; here is {', '.join(others)}")
    names = [name for name in RUNS if name != "alfworld" or find_spec("textworld")]
    found = train(tmp_path, names)
    if writing:
        text = json.dumps({"made with": here, "runs": {**pinned, **found}}, indent=1)
        GOLDENS.write_text(f"{text}\n")
    else:
        assert {*pinned} == {*RUNS}
        changed = changes(pinned, found)
        assert not changed, "\n".join([*changed, f"The runs are in {tmp_path}. {PIN_AGAIN}"])
    if len(names) < len(RUNS):
        pytest.skip(f"{len(names)} of {len(RUNS)} runs were compared; the last one needs the extra alfworld")
