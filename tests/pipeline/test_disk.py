"""Disks that are full, folders that cannot be written, files that were broken: a sentence, and nothing is lost."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from prepared_runs import Interfering, files, results
from trained_runs import play_stages
from warm_processes import WarmProcess, command_line

from reflectrl.core import InvalidInput, WorkFailed
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
"""Runs commands, one after the other, as a person would, but imports torch once; a run may be copied to a full disk."""
KIB = 1024
pytestmark = pytest.mark.slow


def bubblewrap_works() -> bool:
    return (
        shutil.which("bwrap") is not None and not subprocess.run(["bwrap", "--dev-bind", "/", "/", "true"]).returncode
    )


needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="bubblewrap makes the disks that are full")

# ---- full, and not to be written -------------------------------------------------------------------------------------

FULL = {
    "gen-data, at a reply": ("gen-data", 20 * KIB, "calls/teacher/replies.jsonl", "data"),
    "sft, at a checkpoint": ("sft", 700 * KIB, "base", "checkpoints/sft-reflector/*/checkpoint-4"),
    "sft, at the model": ("sft", 1500 * KIB, "checkpoints/sft-reflector/*/checkpoint-4", "reflector"),
    "rlft, at the metrics": ("rlft", 12 * KIB, "policy-sft", "checkpoints/rlft/checkpoint-2"),
    "rlft, at the second checkpoint": (
        "rlft",
        1400 * KIB,
        "checkpoints/rlft/checkpoint-2",
        "checkpoints/rlft/checkpoint-4",
    ),
    "eval, at the second row": ("eval", 44 * KIB, "eval.partial.jsonl", "eval.jsonl"),
}
"""Stage, room on the disk, what is there afterwards, and what is not."""


@pytest.fixture(scope="module")
def answers(prepared, tmp_path_factory):
    """Exit code and words of the command line on each bad disk."""
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
    command = ["bwrap", "--dev-bind", "/", "/", *disks, sys.executable, "-c", DRIVER]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return {name: (place / f"full {name}", *answer) for name, answer in said.items()}


@needs_bubblewrap
@pytest.mark.parametrize("name", FULL)
def test_a_full_disk_is_a_sentence_and_with_room_again_the_command_goes_on(name, prepared, answers):
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
@pytest.mark.parametrize("name", ["run", "new"])
def test_a_folder_that_can_only_be_read_is_a_sentence(name, answers):
    _, code, said = answers[f"read-only {name}"]
    assert code == 2
    assert "Read-only file system" in said
    assert "Traceback" not in said


def test_a_run_folder_that_is_a_file_is_a_sentence(prepared, tmp_path):
    (tmp_path / "run").write_text("mine")
    for run in (tmp_path / "run", tmp_path / "run" / "deeper"):
        with pytest.raises(InvalidInput):
            play_stages(prepared.recipe, run, "eval")
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("name", ["it's [bold] {x} %s \n*?\u202e\U0001f695", "-r"])
def test_folders_may_have_odd_names(name, prepared, tmp_path):
    run = prepared.copy_before("rlft", tmp_path / name / name)
    play_stages(prepared.recipe, run, "rlft", "eval")
    assert results(run) == results(prepared.after("eval"))


# ---- damaged ---------------------------------------------------------------------------------------------------------

LEDGERS = {
    "empty": b"",
    "not text": b"\xff\xfe",
    "deep": b"[" * 10**5,
    "a list": b"[]",
    "an entry without done": b'{"gen-data": {"inputs": {}}}',
    "inputs that are a list": b'{"gen-data": {"done": true, "inputs": ["seed"]}}',
    "done in words": b'{"gen-data": {"done": "yes", "inputs": {}}}',
    "another stage": b'{"gen-data": {"done": true, "inputs": {}}, "deploy": 7}',
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


def cut(checkpoint: Path) -> None:
    with (checkpoint / "model.safetensors").open("rb+") as file:
        file.truncate(1000)


def foreign(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    (checkpoint / "pytorch_model.bin").write_bytes(b"\x80\x04.")


@pytest.mark.parametrize("harm", [cut, foreign])
def test_a_broken_checkpoint_is_reported_and_the_one_before_it_used(harm, prepared, tmp_path, caplog):
    run = prepared.half_done(tmp_path / "run")
    harm(run / "checkpoints" / "rlft" / "checkpoint-6")
    play_stages(prepared.recipe, run, "rlft")
    assert re.search(r"checkpoint-6.*checkpoint-4", caplog.text)
    assert results(run) == results(prepared.after("rlft"))


def test_without_a_whole_checkpoint_nothing_is_touched(prepared, tmp_path):
    run = prepared.half_done(tmp_path / "run")
    for number in (4, 6):
        cut(run / "checkpoints" / "rlft" / f"checkpoint-{number}")
    before = files(run)
    with pytest.raises(InvalidInput, match="checkpoints/rlft"):
        play_stages(prepared.recipe, run, "rlft")
    assert files(run) == before


# ---- two at a time, and none at all ----------------------------------------------------------------------------------


def test_a_second_command_on_one_folder_is_refused_and_the_first_goes_on(prepared, tmp_path):
    run = prepared.copy_before("eval", tmp_path / "run")
    second = []

    def start() -> None:
        second.append(WarmProcess(tmp_path / "log", command_line, *prepared.command("eval", run)))
        second[0].wait()

    run_stages(prepared.recipe, run, ("eval",), reporter=Interfering(start))
    assert second[0].returncode == 2
    assert str(run) in second[0].said
    assert "Traceback" not in second[0].said
    assert results(run) == results(prepared.after("eval"))


@pytest.mark.parametrize("stage", ["gen-data", "rlft"])
def test_a_folder_that_is_taken_away_at_work_is_a_sentence_and_put_back_it_goes_on(stage, prepared, tmp_path):
    run, elsewhere = prepared.copy_before(stage, tmp_path / "run"), tmp_path / "elsewhere"
    with pytest.raises(WorkFailed, match=str(run)):
        run_stages(prepared.recipe, run, (stage,), reporter=Interfering(lambda: run.rename(elsewhere)))
    assert not RunFolder(run).is_done(stage)
    shutil.rmtree(run, ignore_errors=True)  # parts that were made again
    elsewhere.rename(run)
    play_stages(prepared.recipe, run, stage)
    assert results(run) == results(prepared.after(stage))
