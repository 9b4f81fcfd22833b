"""ALFWorld's table of learning, from run folders whose results are known."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from alfworld_learning import ARMS, PLAIN, REFLECT, SPOTLESS, UNTAUGHT, report
from arms import HERE, Arm

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.rollout.metrics import EpisodeMetrics
from reflectrl.rollout.results import EvalRow, write_results

LABEL = "ALFWorld engine, self-generated games, floor plans of the training games"


def row(policy: str, reflections: str, mode: str, success: float) -> EvalRow:
    metrics = EpisodeMetrics(
        episodes=300,
        success=success,
        success_low=0.0,
        success_high=1.0,
        episode_return=success,
        length=15 - 10 * success,
        illegal=0.0,
        entropy=1.0,
    )
    return EvalRow(policy, reflections, mode, "test", 25, LABEL, metrics)


def write_run(arm: Arm, seed: int, success: float) -> None:
    """An evaluated run: SFT wins half as often as RLFT, a control a tenth less, greedy a tenth more."""
    run = arm.folder(seed)
    run.mkdir(parents=True)
    rows = [row("random", "none", "sampled", 0.0), row("expert", "none", "sampled", 1.0)]
    for policy, rate in (("sft", success / 2), ("rlft", success)):
        rows += [row(policy, "local", "sampled", rate), row(policy, "local", "greedy", rate + 0.1)]
    rows += [row("rlft", control, "sampled", success - 0.1) for control in ("blank", "shuffled", "expert")]
    write_results(run / "eval.jsonl", rows)
    took = {"sft": 60, "rlft": 90 + 60 * seed}
    ledger = {stage: {"done": True, "inputs": {}, "cpu_seconds": seconds} for stage, seconds in took.items()}
    (run / "stages.json").write_text(json.dumps(ledger))
    (run / "metrics.jsonl").write_text('{"env_steps": 1}\n{"env_steps": 1234}\n')
    (run / "recipe.yaml").write_text(dump_recipe(load_recipe(arm.recipe)))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """All arms but the last one, with two seeds."""
    for arm, success in ((REFLECT, 0.8), (PLAIN, 0.6), (UNTAUGHT, 0.2)):
        for seed in (0, 1):
            write_run(replace(arm, runs=tmp_path), seed, success + 0.1 * seed)
    return tmp_path


def cells(text: str) -> dict[str, list[str]]:
    """The lines of the table but its heads, by their first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {first: rest for first, *rest in lines if "success %" not in rest}


def test_the_table_can_be_had_before_the_last_arm_is_trained(runs: Path) -> None:
    text = report([0, 1], runs, ["no_reflection", "rlft_only"])
    assert list(cells(text)) == [
        "random",
        "RLFT only (no SFT, no reflection), 2 iterations",
        "SFT, without reflection",
        "SFT, with reflection",
        "SFT + RLFT without reflection",
        "**Reflect-RL**",
        "its policy, reflections blank",
        "its policy, reflections of other states",
        "its policy, the expert's reflections",
        "expert",
    ]
    assert cells(text)["SFT, without reflection"][:2] == ["30", "35"]
    assert cells(text)["**Reflect-RL**"] == ["80", "90", "**85** ± 64", "95", "6.5", "3.0", "1,234"]
    assert f"{LABEL}: " in text
    write_run(replace(SPOTLESS, runs=runs), 0, 0.4)
    assert cells(report([0], runs, [*ARMS]))["SFT + RLFT without negatives"][0] == "40"
    assert "`python benchmarks/alfworld_learning.py --arms no_reflection rlft_only`" in text


def test_no_benchmark_hides_the_package_it_measures() -> None:
    """Scripts find what lies beside them first: a benchmark called alfworld.py would be imported as ALFWorld."""
    find = "import importlib.util as u; print(u.find_spec('alfworld').submodule_search_locations is not None)"
    code = [sys.executable, "-c", find]
    assert subprocess.run(code, cwd=HERE, check=True, capture_output=True, text=True).stdout == "True\n"
