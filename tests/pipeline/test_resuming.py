"""A run that is killed or stopped at any moment and restarted ends with the bytes of an undisturbed run."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from interruptions import command_that_ends
from prepared_runs import Prepared, results
from run_folders import unfinish
from trained_runs import play_stages
from warm_processes import WarmProcess

from reflectrl.config import load_recipe
from reflectrl.pipeline.folder import RunFolder
from reflectrl.rollout.results import read_results

KILLED, STOPPED = signal.SIGKILL, signal.SIGTERM
MOMENTS = (
    ("gen-data", "teacher/replies.jsonl", 20, KILLED),
    ("gen-data", "sft/policy.jsonl", 1, KILLED),
    ("sft", "run/reflector", 1, KILLED),
    ("sft", "/checkpoint-100", 1, signal.SIGINT),
    ("sft", "/checkpoint-104", 1, KILLED),
    ("rlft", "/checkpoint-4", 1, KILLED),
    ("rlft", "metrics.jsonl", 3, STOPPED),
    ("rlft", "run/policy", 1, KILLED),
    ("eval", "eval.partial.jsonl", 2, STOPPED),
    ("eval", "run/eval.jsonl", 1, KILLED),
)
"""Stage, file that is about to be written, the count of its writes in the process, and the signal."""


@pytest.mark.slow
def test_a_run_that_is_interrupted_again_and_again_ends_with_the_same_bytes_and_pays_no_reply_twice(
    prepared: Prepared, tmp_path: Path
) -> None:
    run, asked = tmp_path / "run", prepared.endpoint.requests
    asked.clear()
    for stage, file, count, number in MOMENTS:
        process = WarmProcess(tmp_path / "log", command_that_ends, file, count, number, *prepared.command("run", run))
        code = process.wait()
        assert code == (-number if number == KILLED else 128 + number), (file, process.said)
        assert "Traceback" not in process.said
        assert not RunFolder(run).is_done(stage)
    play_stages(prepared.recipe, run)
    assert results(run) == results(prepared.after("eval"))
    paid = (prepared.after("gen-data") / "calls" / "teacher" / "replies.jsonl").read_text().count("\n")
    # those in flight at either end may or may not have been answered
    assert abs(len(asked) - paid) <= 2 * prepared.recipe.data.concurrency


def half_evaluated(prepared: Prepared, run: Path) -> dict[str, int]:
    """Make an evaluation as if killed in its second row, and return the modification times of its episode files."""
    shutil.copytree(prepared.after("eval"), run)
    rows = (run / "eval.jsonl").read_bytes().splitlines(keepends=True)
    (run / "eval.jsonl").unlink()
    (run / "eval.partial.jsonl").write_bytes(rows[0] + rows[1][:20])
    unfinish(run, "eval")
    return {path.name: path.stat().st_mtime_ns for path in (run / "trajectories").glob("eval-*")}


@pytest.mark.slow
def test_rows_of_an_evaluation_that_are_there_are_not_played_again_unless_the_episodes_are_others(
    prepared: Prepared, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    before = half_evaluated(prepared, run)
    play_stages(prepared.recipe, run, "eval")
    assert results(run) == results(prepared.after("eval"))
    kept = {name for name, written in before.items() if (run / "trajectories" / name).stat().st_mtime_ns == written}
    first = read_results(run / "eval.jsonl")[0]
    assert kept == {f"eval-{first.policy}-{first.reflections}-{first.mode}.jsonl"}
    shutil.rmtree(run)
    before = half_evaluated(prepared, run)
    play_stages(load_recipe("number_line/nano", [*prepared.overrides, "eval.episodes=5"]), run, "eval")
    assert {row.metrics.episodes for row in read_results(run / "eval.jsonl") if row.mode == "sampled"} == {5}
    assert not (run / "eval.partial.jsonl").exists()
    assert all((run / "trajectories" / name).stat().st_mtime_ns > written for name, written in before.items())
