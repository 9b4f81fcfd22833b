"""Disks that are full, folders that cannot be written, files that somebody broke: a sentence, and nothing lost."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from scripted_endpoint import ScriptedEndpoint

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.console import Advance, Reporter
from reflectrl.pipeline.folder import RunFolder

SMALL = [
    "data.teacher=openai",
    "data.samples=60",
    "data.concurrency=2",
    "sft.reflector.steps=4",
    "sft.policy.steps=4",
    "rlft.stages.0.iterations=6",
    "rlft.save_every=2",
    "rlft.episodes=6",
    "rlft.record_episodes=2",
    "eval.episodes=12",
    "eval.policies=[random, rlft]",
]
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


def bubblewrap_works() -> bool:
    return (
        shutil.which("bwrap") is not None and subprocess.run(["bwrap", "--dev-bind", "/", "/", "true"]).returncode == 0
    )


needs_bubblewrap = pytest.mark.skipif(not bubblewrap_works(), reason="bubblewrap makes the disks that are full")


def files(run: Path) -> dict[str, bytes]:
    """What must not be lost."""
    found = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in (".lock", "stages.json")}


def results(run: Path) -> dict[str, bytes]:
    clocks = ("checkpoints/", "calls/", "throughput.jsonl")
    return {name: content for name, content in files(run).items() if not name.startswith(clocks)}


def quiet() -> Reporter:
    return Reporter(Console(file=io.StringIO()))


@dataclass
class Prepared:
    """A run as it was before and after each stage."""

    recipe: Recipe
    overrides: list[str]
    folder: Path

    def before(self, stage: str) -> Path:
        place = STAGES.index(stage)
        return self.folder / (STAGES[place - 1] if place else "nothing")

    def after(self, stage: str) -> Path:
        return self.folder / stage

    def command(self, stage: str, run: Path) -> list[str]:
        where = ["--recipe", "number_line/nano", "--runs", str(run.parent), "--run", run.name]
        return [stage, *where, *self.overrides]

    def half_done(self, run: Path) -> Path:
        """A run that was killed in rlft after its last checkpoint."""
        shutil.copytree(self.after("rlft"), run)
        shutil.rmtree(run / "policy")
        ledger = json.loads((run / "stages.json").read_text())
        ledger["rlft"]["done"] = False
        (run / "stages.json").write_text(json.dumps(ledger))
        return run


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("disk")
    with pytest.MonkeyPatch.context() as patch, ScriptedEndpoint() as endpoint:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setenv("OMP_NUM_THREADS", "1")
        endpoint.reply = lambda chat: f"{chat[1]['content'].splitlines()[-3][:60]} {'I think about it. ' * 12}".strip()
        overrides = [*SMALL, f"data.endpoint.base_url={endpoint.url}"]
        made = Prepared(load_recipe("number_line/nano", overrides), overrides, folder)
        (folder / "nothing").mkdir()
        for stage in STAGES:
            shutil.copytree(made.before(stage), made.after(stage))
            run_stages(made.recipe, made.after(stage), (stage,), reporter=quiet())
        yield made


# ---- full, and not to be written -------------------------------------------------------------------------------------

FULL = {
    "gen-data, at a reply": ("gen-data", 20 * KIB, "calls/teacher/replies.jsonl", "data"),
    "sft, at the base": ("sft", 100 * KIB, "sft/policy.jsonl", "base"),
    "sft, at a checkpoint": ("sft", 700 * KIB, "base", "checkpoints/sft-reflector/*/checkpoint-4"),
    "sft, at the model": ("sft", 1500 * KIB, "checkpoints/sft-reflector/*/checkpoint-4", "reflector"),
    "rlft, at the metrics": ("rlft", 12 * KIB, "policy-sft", "checkpoints/rlft/checkpoint-2"),
    "rlft, at the first checkpoint": ("rlft", 300 * KIB, "metrics.jsonl", "checkpoints/rlft/checkpoint-2"),
    "rlft, at the second": ("rlft", 1400 * KIB, "checkpoints/rlft/checkpoint-2", "checkpoints/rlft/checkpoint-4"),
    "eval, at the first row": ("eval", 16 * KIB, "policy", "eval.partial.jsonl"),
    "eval, at the second row": ("eval", 44 * KIB, "eval.partial.jsonl", "eval.jsonl"),
}
"""Stage, room on the disk, what is there afterwards, and what is not."""


@pytest.fixture(scope="module")
def answers(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | str, str]]:
    """What the command line says on each bad disk."""
    place = tmp_path_factory.mktemp("disks")
    (small := place / "small").mkdir()
    cases = [
        {
            "name": name,
            "run": str(small / "run"),
            "before": str(prepared.before(stage)),
            "room": room,
            "after": str(prepared.folder / f"full {name}"),
            "arguments": prepared.command(stage, small / "run"),
        }
        for name, (stage, room, _, _) in FULL.items()
    ]
    locked = place / "locked"
    shutil.copytree(prepared.before("eval"), locked / "run")
    for name in ("run", "new"):
        given = {"run": str(locked / name), "before": None, "room": None, "after": None}
        cases.append({"name": f"read-only {name}", "arguments": prepared.command("eval", locked / name), **given})
    disks = ["--size", str(8 * KIB * KIB), "--tmpfs", str(small), "--ro-bind", str(locked), str(locked)]
    done = subprocess.run(
        ["bwrap", "--dev-bind", "/", "/", *disks, sys.executable, "-c", DRIVER],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@needs_bubblewrap
@pytest.mark.parametrize("name", FULL)
def test_a_full_disk_is_a_sentence_and_with_room_again_the_command_goes_on(name, prepared, answers):
    stage, _, made, missing = FULL[name]
    code, said = answers[name]
    assert code == 1, said
    assert re.search(
        r"\nerror: [^\n]*(refused to write in|cannot be written)[^\n]*No space left[^\n]*\n\Z", f"\n{said}"
    )
    assert "Traceback" not in said
    run = prepared.folder / f"full {name}"
    assert list(run.glob(made))
    assert not list(run.glob(missing))
    before, there = files(prepared.before(stage)), files(run)
    assert all(there[key] == content for key, content in before.items() if key != "recipe.yaml")
    assert [RunFolder(run).is_done(each) for each in STAGES] == [
        each in STAGES[: STAGES.index(stage)] for each in STAGES
    ]
    run_stages(prepared.recipe, run, (stage,), reporter=quiet())
    assert results(run) == results(prepared.after(stage))


@needs_bubblewrap
@pytest.mark.parametrize("name", ["run", "new"])
def test_a_folder_that_can_only_be_read_is_a_sentence(name, answers):
    code, said = answers[f"read-only {name}"]
    assert code == 2
    assert "cannot be written" in said
    assert "Read-only file system" in said
    assert "Traceback" not in said


def test_a_run_folder_that_is_a_file_is_a_sentence(prepared, tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InvalidInput, match="cannot be written"):
        run_stages(prepared.recipe, tmp_path / "run", ("eval",))
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("name", ["it's [bold] {x} %s \n*?\u202e\U0001f695", "-r", " ", "a" * 200])
def test_folders_may_have_odd_names(name, prepared, tmp_path):
    run = tmp_path / name / name
    shutil.copytree(prepared.before("rlft"), run)
    run_stages(prepared.recipe, run, ("rlft", "eval"), reporter=quiet())
    assert results(run) == results(prepared.after("eval"))


# ---- broken by somebody ----------------------------------------------------------------------------------------------

ENTRY = '{"done": true, "inputs": {}}'
LEDGERS = {
    "empty": b"",
    "cut": b'{"gen-data": {"done": tr',
    "not text": b"\xff\xfe",
    "deep": b"[" * 10**5,
    "a list": b"[]",
    "a number as an entry": b'{"gen-data": 5}',
    "an entry without inputs": b'{"gen-data": {"done": true}}',
    "an entry without done": b'{"gen-data": {"inputs": {}}}',
    "inputs that are a list": b'{"gen-data": {"done": true, "inputs": ["seed"]}}',
    "done in words": b'{"gen-data": {"done": "yes", "inputs": {}}}',
    "another stage": f'{{"gen-data": {ENTRY}, "deploy": 7}}'.encode(),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_broken_ledger_is_a_sentence_and_is_left_as_it_is(name, prepared, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "stages.json").write_bytes(LEDGERS[name])
    for stage in ("gen-data", "eval"):
        with pytest.raises(InvalidInput, match="is not the ledger of a run folder"):
            run_stages(prepared.recipe, run, (stage,), reporter=quiet())
    assert (run / "stages.json").read_bytes() == LEDGERS[name]


def test_a_ledger_that_is_a_folder_is_a_sentence(prepared, tmp_path):
    (tmp_path / "run" / "stages.json").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="is not the ledger of a run folder"):
        run_stages(prepared.recipe, tmp_path / "run", ("gen-data",), reporter=quiet())


def cut(checkpoint: Path) -> None:
    with (checkpoint / "optimizer.safetensors").open("rb+") as file:
        file.truncate(1000)


def foreign(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    checkpoint.mkdir()
    (checkpoint / "pytorch_model.bin").write_bytes(b"\x80\x04.")


@pytest.mark.parametrize("harm", [cut, foreign])
def test_a_broken_checkpoint_is_told_of_and_the_one_before_it_used(harm, prepared, tmp_path, caplog):
    run = prepared.half_done(tmp_path / "run")
    harm(run / "checkpoints" / "rlft" / "checkpoint-6")
    run_stages(prepared.recipe, run, ("rlft",), reporter=quiet())
    assert re.search(r"passing over .*checkpoint-6.* going on from .*checkpoint-4", caplog.text)
    assert results(run) == results(prepared.after("rlft"))


def test_without_a_whole_checkpoint_the_command_line_says_what_to_delete(prepared, tmp_path):
    run = prepared.half_done(tmp_path / "run")
    for number in (4, 6):
        cut(run / "checkpoints" / "rlft" / f"checkpoint-{number}")
    before = files(run)
    command = [sys.executable, "-m", "reflectrl", *prepared.command("rlft", run)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: no checkpoint in ")
    assert "Delete that folder to start this stage anew." in done.stderr
    assert "Traceback" not in done.stderr
    assert files(run) == before


# ---- two at a time, and none at all ----------------------------------------------------------------------------------


class Interfering(Reporter):
    """Does something the first time that a stage tells how far it is."""

    def __init__(self, deed: Callable[[], object]) -> None:
        super().__init__(Console(file=io.StringIO()))
        self._deeds = [deed]

    @contextmanager
    def stage(self, name: str) -> Iterator[Advance]:
        with super().stage(name) as advance:

            def interfere(done: int, total: int, note: str) -> None:
                advance(done, total, note)
                if self._deeds:
                    self._deeds.pop()()

            yield interfere


def test_a_second_command_on_one_folder_is_refused_and_the_first_goes_on(prepared, tmp_path):
    run, refused = tmp_path / "run", []
    shutil.copytree(prepared.before("eval"), run)

    def second() -> None:
        command = [sys.executable, "-m", "reflectrl", *prepared.command("eval", run)]
        refused.append(subprocess.run(command, capture_output=True, text=True, timeout=240, check=False))

    run_stages(prepared.recipe, run, ("eval",), reporter=Interfering(second))
    (done,) = refused
    assert done.returncode == 2
    assert "another process is working in run folder" in done.stderr
    assert "Traceback" not in done.stderr
    assert results(run) == results(prepared.after("eval"))


@pytest.mark.parametrize("stage", STAGES)
def test_a_folder_that_is_taken_away_at_work_is_a_sentence_and_put_back_it_goes_on(stage, prepared, tmp_path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    shutil.copytree(prepared.before(stage), run)
    with pytest.raises(WorkFailed, match=rf"run folder {run} is gone"):
        run_stages(prepared.recipe, run, (stage,), reporter=Interfering(lambda: run.rename(elsewhere)))
    assert not RunFolder(run).is_done(stage)
    shutil.rmtree(run, ignore_errors=True)  # parts that were made anew
    elsewhere.rename(run)
    run_stages(prepared.recipe, run, (stage,), reporter=quiet())
    assert results(run) == results(prepared.after(stage))
