"""ALFWorld's table of learning, from run folders whose results are known."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from alfworld_learning import ARMS, PLAIN, REFLECT, SPOTLESS, UNTAUGHT, report
from arm_runs import cells, write_run
from arms import HERE

from reflectrl.rollout.metrics import EpisodeMetrics
from reflectrl.rollout.results import EvalRow

LABEL = "ALFWorld engine, self-generated games, floor plans of the training games"


def row(policy: str, reflections: str, mode: str, success: float) -> EvalRow:
    rates = {"success": success, "success_low": 0.0, "success_high": 1.0, "episode_return": success}
    metrics = EpisodeMetrics(episodes=300, **rates, length=15 - 10 * success, illegal=0.0, entropy=1.0)
    return EvalRow(policy, reflections, mode, "test", 25, LABEL, metrics)


def results(success: float) -> list[EvalRow]:
    """SFT wins half as often as RLFT, a control a tenth less, greedy a tenth more."""
    rows = [row("random", "none", "sampled", 0.0), row("expert", "none", "sampled", 1.0)]
    for policy, rate in (("sft", success / 2), ("rlft", success)):
        rows += [row(policy, "local", "sampled", rate), row(policy, "local", "greedy", rate + 0.1)]
    return rows + [row("rlft", control, "sampled", success - 0.1) for control in ("blank", "shuffled", "expert")]


def test_the_table_can_be_had_before_the_last_arm_is_trained(tmp_path: Path) -> None:
    for arm, success in ((REFLECT, 0.8), (PLAIN, 0.6), (UNTAUGHT, 0.2)):
        for seed in (0, 1):
            write_run(replace(arm, runs=tmp_path).folder(seed), arm.recipe, results(success + 0.1 * seed), seed)
    text = report([0, 1], tmp_path, ["no_reflection", "rlft_only"])
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
    write_run(replace(SPOTLESS, runs=tmp_path).folder(0), SPOTLESS.recipe, results(0.4))
    assert cells(report([0], tmp_path, [*ARMS]))["SFT + RLFT without negatives"][0] == "40"
    assert "`python benchmarks/alfworld_learning.py --arms no_reflection rlft_only`" in text


def test_no_benchmark_hides_the_package_it_measures() -> None:
    """Scripts find what lies beside them first: a benchmark called alfworld.py would be imported as ALFWorld."""
    find = "import importlib.util as u; print(u.find_spec('alfworld').submodule_search_locations is not None)"
    code = [sys.executable, "-c", find]
    assert subprocess.run(code, cwd=HERE, check=True, capture_output=True, text=True).stdout == "True\n"
