"""Killed or stopped at any moment and started again, a run ends with the bytes of one that nothing disturbed."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from interruptions import command_that_ends
from prepared_runs import Prepared, results
from trained_runs import play_stages
from warm_processes import WarmProcess

from reflectrl.config import load_recipe
from reflectrl.pipeline.folder import RunFolder
from reflectrl.rollout.results import read_results

pytestmark = pytest.mark.slow

KILLED, STOPPED = signal.SIGKILL, signal.SIGTERM
MOMENTS = {
    "between replies of a teacher": ("gen-data", "teacher/replies.jsonl", 20, KILLED),
    "at a stop between replies": ("gen-data", "teacher/replies.jsonl", 20, STOPPED),
    "before the rows are there": ("gen-data", "sft/policy.jsonl", 1, KILLED),
    "between the players": ("sft", "run/reflector", 1, KILLED),
    "after a checkpoint of sft": ("sft", "/checkpoint-104", 1, KILLED),
    "at a stop in sft": ("sft", "/checkpoint-100", 1, signal.SIGINT),
    "between checkpoints of rlft": ("rlft", "metrics.jsonl", 4, KILLED),
    "in a checkpoint of rlft": ("rlft", "/checkpoint-4", 1, KILLED),
    "before the policy is there": ("rlft", "run/policy", 1, KILLED),
    "at a stop in rlft": ("rlft", "metrics.jsonl", 4, STOPPED),
    "between two rows of eval": ("eval", "eval.partial.jsonl", 2, KILLED),
    "before the table is there": ("eval", "run/eval.jsonl", 1, KILLED),
    "at a stop in eval": ("eval", "eval.partial.jsonl", 2, STOPPED),
}
"""Stage, file that is about to be written, how often before, and the signal."""


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupted_stage_ends_with_the_same_bytes(moment: str, prepared: Prepared, tmp_path: Path) -> None:
    stage, file, count, number = MOMENTS[moment]
    run = prepared.copy_before(stage, tmp_path / "run")
    command = prepared.command(stage, run)
    process = WarmProcess(tmp_path / "log", command_that_ends, file, count, number, *command)
    code = process.wait()
    assert code == (-number if number == KILLED else 128 + number), process.said
    assert "Traceback" not in process.said
    assert not RunFolder(run).is_done(stage)
    play_stages(prepared.recipe, run, stage)
    assert results(run) == results(prepared.after(stage))


def test_no_reply_of_a_teacher_is_paid_for_twice(prepared: Prepared, tmp_path: Path) -> None:
    run, endpoint = tmp_path / "run", prepared.endpoint
    before = len(endpoint.requests)
    arguments = ("teacher/replies.jsonl", 20, KILLED, *prepared.command("gen-data", run))
    WarmProcess(tmp_path / "log", command_that_ends, *arguments).wait()
    killed = len(endpoint.requests)
    kept = (run / "calls" / "teacher" / "replies.jsonl").read_text().count("\n")
    assert 0 < kept < 20 <= killed - before <= kept + prepared.recipe.data.concurrency + 1
    play_stages(prepared.recipe, run, "gen-data")
    whole = (prepared.after("gen-data") / "calls" / "teacher" / "replies.jsonl").read_text().count("\n")
    # those in flight at either end may or may not have been answered
    assert abs(len(endpoint.requests) - killed - (whole - kept)) <= prepared.recipe.data.concurrency


def half_evaluated(prepared: Prepared, run: Path) -> dict[str, int]:
    """Leave an evaluation as one that was killed in its second row; returns when its episodes were written."""
    shutil.copytree(prepared.after("eval"), run)
    rows = (run / "eval.jsonl").read_bytes().splitlines(keepends=True)
    (run / "eval.jsonl").unlink()
    (run / "eval.partial.jsonl").write_bytes(rows[0] + rows[1][:20])
    ledger = json.loads((run / "stages.json").read_text())
    ledger["eval"]["done"] = False
    (run / "stages.json").write_text(json.dumps(ledger))
    return {path.name: path.stat().st_mtime_ns for path in (run / "trajectories").glob("eval-*")}


def test_rows_of_an_evaluation_that_are_there_are_not_played_again(prepared: Prepared, tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = half_evaluated(prepared, run)
    play_stages(prepared.recipe, run, "eval")
    assert results(run) == results(prepared.after("eval"))
    kept = {name for name, written in before.items() if (run / "trajectories" / name).stat().st_mtime_ns == written}
    first = read_results(run / "eval.jsonl")[0]
    assert kept == {f"eval-{first.policy}-{first.reflections}-{first.mode}.jsonl"}


def test_a_half_evaluation_of_other_episodes_begins_again(prepared: Prepared, tmp_path: Path) -> None:
    run = tmp_path / "run"
    before = half_evaluated(prepared, run)
    play_stages(load_recipe("number_line/nano", [*prepared.overrides, "eval.episodes=5"]), run, "eval")
    rows = read_results(run / "eval.jsonl")
    assert {row.metrics.episodes for row in rows if row.mode == "sampled"} == {5}
    assert not (run / "eval.partial.jsonl").exists()
    assert all((run / "trajectories" / name).stat().st_mtime_ns > written for name, written in before.items())
