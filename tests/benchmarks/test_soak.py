"""The soak: samples of real work, and a judgement that notices what grows, what leaks and what is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
from soak import Sample, alfworld, at, below, entries, judge, megabytes, processor_seconds, report, slope, taxi

TINY = (
    *("data.samples=40", "sft.reflector.steps=2", "sft.policy.steps=2", "players.max_new_tokens=4"),
    *("rlft.episodes=2", "rlft.num_iterations=1", "rlft.save_every=1", "rlft.record_episodes=1"),
)
START = Sample(0, 300.0, 0.0, 7, 4, 0, 500_000, 0.0, 0.0, 0.0, 0.0)


def samples(**ends: float) -> list[Sample]:
    """A hundred, each of 20 iterations, all alike but for figures that grow evenly up to these."""
    steady = replace(START, processes=2, workers_mb=200.0, wall_ms=50.0, cpu_ms=40.0, step_ms=4.0)
    return [
        replace(
            steady, done=20 * n, **{k: getattr(steady, k) + (v - getattr(steady, k)) * n / 100 for k, v in ends.items()}
        )
        for n in range(1, 101)
    ]


def failed(before: Sample, during: list[Sample], after: Sample) -> dict[str, str]:
    return {row.what: row.verdict for row in judge(before, during, after) if not row.passed}


def test_steady_work_passes():
    assert failed(START, samples(), START) == {}


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [
        ({"own_mb": 308.0}, {}),  # 4 MB per 1,000
        ({"own_mb": 312.0}, {"memory, MB": "GROWS"}),
        ({"workers_mb": 218.0}, {}),  # 9 MB, of two processes
        ({"workers_mb": 222.0}, {"memory of worker processes, MB": "GROWS"}),
        ({"own_mb": 200.0}, {}),
        ({"files": 9}, {"open files": "MORE"}),
        ({"threads": 6}, {"threads": "MORE"}),
        ({"processes": 4}, {"worker processes": "MORE"}),
        ({"files": 5}, {}),
        ({"objects": 900_000, "disk_mb": 90.0, "wall_ms": 90.0}, {}),  # told, but decides nothing
    ],
)
def test_what_grows_is_told_by_name(ends, verdict):
    assert failed(START, samples(**ends), START) == verdict


def test_what_is_left_behind_is_told_by_name():
    assert failed(START, samples(), replace(START, files=8)) == {"files left open": "LEFT"}
    assert failed(START, samples(), replace(START, processes=1)) == {"processes left": "LEFT"}


def test_what_warms_up_in_the_first_half_is_forgiven():
    warming = [replace(s, own_mb=100.0 + min(s.done, 1000) / 5) for s in samples()]
    assert slope(warming[:50], "own_mb") == pytest.approx(200.0)
    assert failed(START, warming, START) == {}


def test_the_pace_is_compared_from_fifth_to_fifth():
    during = samples(wall_ms=100.0)
    rows = {row.what: row for row in judge(START, during, START)}
    assert rows["wall ms"].values == (65.25, 75.25, 95.25), "in the middle of the second, third and last fifth"
    assert (rows["wall ms"].change, rows["wall ms"].verdict) == ("+46.0%", "drifts")
    assert (rows["processor ms"].change, rows["processor ms"].verdict) == ("+0.0%", "steady")


def test_the_table_has_a_line_for_each_figure():
    rows = judge(START, samples(files=9), START)
    text = report(rows, "python benchmarks/soak.py taxi", "a test")
    assert "| open files | 7.2 | 8 | 9 | +2 | MORE |" in text
    assert len([line for line in text.splitlines() if line.startswith("| ")]) == 1 + len(rows)


def test_processes_below_those_below_are_seen_and_those_nobody_waited_for():
    wait = "import sys; sys.stdin.read()"
    inner = f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', {wait!r}]); print(flush=True); {wait}"
    before = list(below(os.getpid()))
    with subprocess.Popen(
        [sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
    ) as child:
        child.stdout.readline()
        assert len(list(below(os.getpid()))) == len(before) + 2
        assert megabytes(child.pid) > 5
        assert entries(child.pid, "fd") >= 3
        assert processor_seconds(child.pid) > 0
        child.stdin.close()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert child.pid in list(below(os.getpid())), "it has ended, but nobody has taken note"
    assert child.pid not in list(below(os.getpid()))


def test_taxi_is_trained_with_checkpoints_and_records_and_sampled(tmp_path):
    watch = taxi(tmp_path / "run", tmp_path / "out.jsonl", 3, 0, TINY)
    assert [sample.done for sample in watch.during] == [1, 2, 3]
    assert all(sample.own_mb > 50 and sample.step_ms > 0 for sample in watch.during)
    assert len(list((tmp_path / "run" / "checkpoints" / "rlft").glob("checkpoint-*"))) == 2  # of three
    assert len(list((tmp_path / "run" / "trajectories").glob("rlft-*"))) == 3
    assert watch.during[-1].disk_mb > watch.during[0].disk_mb > 0
    after = watch.after()
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == [asdict(sample) for sample in (watch.before, *watch.during, after)]
    assert after.files == watch.before.files


def test_alfworld_is_played_in_worker_processes_that_end(tmp_path):
    options = ("env.options.count=2", "env.options.horizon=3")
    watch = alfworld(tmp_path / "run", tmp_path / "out.jsonl", 40, 0, options)
    assert [(sample.done, sample.processes - watch.before.processes) for sample in watch.during] == [(20, 2), (40, 2)]
    assert all(sample.workers_mb > 20 for sample in watch.during)
    assert at(watch.during, 0.1) is watch.during[0]
    assert (watch.after().processes, watch.after().files) == (watch.before.processes, watch.before.files)
