"""Full disks, read-only or missing folders and broken files are reported in a sentence, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from prepared_runs import Interfering, files, results
from trained_runs import play_stages
from warm_processes import run_command

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.origin import FORMAT
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.folder import RunFolder

DRIVER = """
import contextlib, io, json, os, pathlib, shutil, sys, traceback
from reflectrl.cli import main

answers = {}
for case in json.load(sys.stdin):
    run, said, code = pathlib.Path(case["run"]), io.StringIO(), 0
    filler = run.parent / "filler"
    if case["before"]:
        shutil.copytree(case["before"], run)
    if case["room"]:
        disk = os.statvfs(run.parent)
        filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize - case["room"]))
    sys.argv = ["reflectrl", *case["arguments"]]
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        code = traceback.format_exc()
    answers[case["name"]] = (code, said.getvalue())
    if case["after"]:
        shutil.copytree(run, case["after"])
        shutil.rmtree(run)
    if case["room"]:
        filler.unlink()
print(json.dumps(answers))
"""
"""Program that runs several commands but imports torch once; a run may be copied to a full disk first."""
KIB = 1024
pytestmark = pytest.mark.slow


BWRAP = ("bwrap", "--dev-bind", "/", "/")
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None or subprocess.run([*BWRAP, "true"]).returncode != 0,
    reason="bubblewrap makes the disks that are full",
)

# ---- full or read-only disks -----------------------------------------------------------------------------------------

FULL = {
    "gen-data, at a reply": ("gen-data", 20 * KIB, "calls/teacher/replies.jsonl", "data"),
    "sft, at the model": ("sft", 1500 * KIB, "checkpoints/sft-reflector/*/checkpoint-4", "reflector"),
    "eval, at the second row": ("eval", 52 * KIB, "eval.partial.jsonl", "eval.jsonl"),
}
"""Stage, space on the disk, files that exist afterwards, and files that do not; for checkpoints see tests/training."""


@pytest.fixture(scope="module")
def answers(prepared, tmp_path_factory):
    """Return the exit code and output of the command line on each bad disk."""
    place = tmp_path_factory.mktemp("disks")
    (small := place / "small").mkdir()
    cases = [
        {
            "name": name,
            "run": str(small / "run"),
            "before": str(prepared.before(stage)),
            "room": room,
            "after": str(place / f"full {name}"),
            "arguments": prepared.command(stage, small / "run"),
        }
        for name, (stage, room, _, _) in FULL.items()
    ]
    locked = place / "locked"
    prepared.copy_before("eval", locked / "run")
    for name in ("run", "new"):
        given = {"run": str(locked / name), "before": None, "room": None, "after": None}
        cases.append({"name": f"read-only {name}", "arguments": prepared.command("eval", locked / name), **given})
    disks = ["--size", str(8 * KIB * KIB), "--tmpfs", str(small), "--ro-bind", str(locked), str(locked)]
    command = [*BWRAP, *disks, sys.executable, "-c", DRIVER]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return {name: (place / f"full {name}", *answer) for name, answer in said.items()}


@needs_bubblewrap
@pytest.mark.parametrize("name", FULL)
def test_a_full_disk_is_a_sentence_and_work_goes_on(name, prepared, answers):
    stage, _, made, missing = FULL[name]
    run, code, said = answers[name]
    assert code == 1, said
    assert re.search(r"\nerror: [^\n]*No space left[^\n]*\n\Z", f"\n{said}")
    assert "Traceback" not in said
    assert list(run.glob(made))
    assert not list(run.glob(missing))
    before, there = files(prepared.before(stage)), files(run)
    assert all(there[key] == content for key, content in before.items() if key != "recipe.yaml")
    done = STAGES[: STAGES.index(stage)]
    assert [each for each in STAGES if RunFolder(run).is_done(each)] == list(done)
    play_stages(prepared.recipe, run, stage)
    assert results(run) == results(prepared.after(stage))


@needs_bubblewrap
def test_a_folder_that_can_only_be_read_is_a_sentence(answers):
    for name in ("run", "new"):
        _, code, said = answers[f"read-only {name}"]
        assert code == 2
        assert "Read-only file system" in said
        assert "Traceback" not in said


def test_a_run_folder_that_is_a_file_is_a_sentence(prepared, tmp_path):
    (tmp_path / "run").write_text("mine")
    for run in (tmp_path / "run", tmp_path / "run" / "deeper"):
        with pytest.raises(InvalidInput, match=str(run)):
            play_stages(prepared.recipe, run, "eval")
    assert (tmp_path / "run").read_text() == "mine"


def test_folders_may_have_odd_names(prepared, tmp_path):
    name = "-r it's [bold] {x} %s \n*?\u202e\U0001f695"
    run = prepared.copy_before("rlft", tmp_path / name / name)
    play_stages(prepared.recipe, run, "rlft", "eval")
    assert results(run) == results(prepared.after("eval"))


# ---- damaged ---------------------------------------------------------------------------------------------------------

LEDGERS = {
    "not text": b"\xff\xfe",
    "deep": b"[" * 10**5,
    "a list": b"[]",
    "an entry without done": b'{"written_by": {"format": %d}, "gen-data": {"inputs": {}}}' % FORMAT,
    "inputs that are a list": b'{"written_by": {"format": %d}, "gen-data": {"done": true, "inputs": ["seed"]}}'
    % FORMAT,
    "another stage": b'{"written_by": {"format": %d}, "gen-data": {"done": true, "inputs": {}}, "deploy": 7}' % FORMAT,
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_broken_ledger_is_a_sentence_and_is_left_as_it_is(name, prepared, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "stages.json").write_bytes(LEDGERS[name])
    for stage in ("gen-data", "eval"):
        with pytest.raises(InvalidInput, match=r"stages\.json"):
            play_stages(prepared.recipe, run, stage)
    assert (run / "stages.json").read_bytes() == LEDGERS[name]


# ---- two processes, and missing files --------------------------------------------------------------------------------


def test_a_second_command_on_one_folder_is_refused(prepared, tmp_path):
    run = prepared.copy_before("eval", tmp_path / "run")
    second = []
    start = Interfering(lambda: second.append(run_command(tmp_path / "log", *prepared.command("eval", run))))
    run_stages(prepared.recipe, run, ("eval",), reporter=start)
    assert second[0].wait() == 2
    assert str(run) in second[0].said
    assert "Traceback" not in second[0].said
    assert results(run) == results(prepared.after("eval"))


@pytest.mark.parametrize("stage", ["gen-data", "rlft"])
def test_a_folder_that_vanishes_at_work_can_be_put_back(stage, prepared, tmp_path):
    run, elsewhere = prepared.copy_before(stage, tmp_path / "run"), tmp_path / "elsewhere"
    with pytest.raises(WorkFailed, match=str(run)):
        run_stages(prepared.recipe, run, (stage,), reporter=Interfering(lambda: run.rename(elsewhere)))
    assert not RunFolder(run).is_done(stage)
    shutil.rmtree(run, ignore_errors=True)  # files that the stage has made again
    elsewhere.rename(run)
    play_stages(prepared.recipe, run, stage)
    assert results(run) == results(prepared.after(stage))
