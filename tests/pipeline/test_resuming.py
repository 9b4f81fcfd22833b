"""A run that is killed or stopped at any moment and restarted ends with the bytes of an undisturbed run."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from command_line import reflectrl
from interruptions import command_that_ends, kill_rlft
from prepared_runs import Prepared, results
from run_folders import unfinish
from scripted_endpoint import replies_in
from trained_runs import TrainedRuns, play_stages, small_recipe
from warm_processes import WarmProcess

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import METRICS, RATINGS, THROUGHPUT
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.rlft_stage import rewind
from reflectrl.rollout.results import read_results

KILLED, STOPPED = signal.SIGKILL, signal.SIGTERM
MOMENTS = (
    ("gen-data", "teacher/replies.jsonl", 20, KILLED),
    ("gen-data", "sft/policy.jsonl", 1, KILLED),
    ("sft", "run/reflector", 1, KILLED),
    ("sft", "sft/policy-training.jsonl", 3, KILLED),
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
    paid = len(replies_in(prepared.after("gen-data") / "calls" / "teacher"))
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


# ---- what is damaged between a kill and a resume -------------------------------------------------------------------

KEPT = 2
"""Iterations in the last checkpoint of ``killed``, which recorded one more."""


@pytest.fixture(scope="module")
def killed(trained_run: TrainedRuns, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose RLFT was killed as it wrote its third line of metrics."""
    run = tmp_path_factory.mktemp("killed") / "run"
    trained_run.begin(small_recipe(), run)
    kill_rlft(small_recipe(), run)
    return run


def without_the_first(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "mine.txt").touch()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 3]),
    "without its first line": without_the_first,
    "removed": Path.unlink,
    "not UTF-8": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "a folder": a_folder,
    "a pipe": a_pipe,
}
RECORDS = (METRICS, THROUGHPUT)


@pytest.mark.slow
@pytest.mark.parametrize("file", RECORDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_records_that_were_damaged_before_a_resume_are_named(killed, tmp_path, file: str, damage: str) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    DAMAGE[damage](run / file)
    with pytest.raises(InvalidInput, match=re.escape(file)):
        rewind(run, KEPT, RECORDS)


@pytest.mark.slow
def test_a_resume_discards_what_came_after_its_checkpoint_and_nothing_else(killed, tmp_path) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    before = {name: (run / name).read_bytes().splitlines() for name in RECORDS}
    with (run / METRICS).open("a") as file:
        file.write('{"iteration": 9}\n{"iter')  # written, but not in a checkpoint
    rewind(run, KEPT, RECORDS)
    assert {name: (run / name).read_bytes().splitlines() for name in before} == {
        name: lines[:KEPT] for name, lines in before.items()
    }
    rewind(run, 0, (*RECORDS, RATINGS))
    assert [(run / name).read_bytes() for name in before] == [b"", b""]
    assert not (run / RATINGS).exists()


@pytest.mark.slow
def test_the_command_refuses_to_continue_with_damaged_records(killed, tmp_path) -> None:
    run = shutil.copytree(killed, tmp_path / "run")
    a_folder(run / METRICS)
    done = reflectrl("rlft", "--runs", str(tmp_path), "--run", "run")
    assert done.code == 2
    assert "metrics.jsonl cannot be read (it is a folder)" in done.err
    assert (run / METRICS / "mine.txt").exists()


@pytest.mark.slow
def test_episodes_of_an_evaluation_that_were_damaged_before_a_resume_are_named(prepared, tmp_path) -> None:
    half_evaluated(prepared, tmp_path / "run")
    row = read_results(prepared.after("eval") / "eval.jsonl")[0]
    path = tmp_path / "run" / "trajectories" / f"eval-{row.policy}-{row.reflections}-{row.mode}.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(InvalidInput, match=rf"{path.name} does not hold the episodes of its row"):
        play_stages(prepared.recipe, tmp_path / "run")
