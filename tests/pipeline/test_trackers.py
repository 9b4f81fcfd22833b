from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from records import chose, turn_of
from run_folders import iteration
from tracked_runs import MEASURED, fail, train_twice, train_without_a_login
from trained_runs import TrainedRuns, play_stages, small_recipe
from warm_processes import WarmProcess

from reflectrl.core import Choice, InvalidInput, Observation, Task, Trajectory, Utterance, Written
from reflectrl.core.jsonl import decode
from reflectrl.core.metric import metrics_of, tracked
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.trackers import transcript
from reflectrl.rollout.iteration import Iteration, Throughput

RESULTS = ("metrics.jsonl", "trajectories", "policy", "checkpoints/rlft/checkpoint-4/reflectrl_state_0.json")

NAMES = {field: metric.tracked for record in (Iteration, Throughput) for field, metric in metrics_of(record).items()}
MEASURED_NAMES = {name for name in NAMES.values() if "thought" not in name} - {
    "rollout/novelty",
    "update/action_kl",
    "update/imitated",
    "update/imitated_too_long",
    *(f"rollout/{name}" for name in ("memory_hits", "memory_key_misses", "rater_std", "rater_invalid")),
    "rollout/corrector_invalid",
}
"""Names of the metrics of every policy; the others belong to policies with thoughts, a memory or a rater."""


def trained_killed_and_trained_on(run: Path, tracker: str, **environment: str) -> str:
    """Train in a separate process, because trackers read their settings once per process; returns its output."""
    home = run.parent / "home"
    home.mkdir()
    kept = {name: None for name in os.environ if name.startswith(("WANDB_", "TRACKIO_"))}
    env = {**kept, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), **environment}
    process = WarmProcess(run.parent / "log", train_twice, run, tracker, cwd=home, env=env)
    assert process.wait() == 0, process.said
    assert {path.name for path in home.iterdir()} <= {"cache", ".cache", ".local", ".config"}
    assert str(run).encode() not in running()
    return process.said


def results(run: Path) -> dict[str, bytes]:
    files = [p for name in RESULTS for p in ([run / name] if (run / name).is_file() else (run / name).rglob("*"))]
    return {str(path.relative_to(run)): path.read_bytes() for path in files if path.is_file()}


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def alone(trained_run: TrainedRuns) -> Path:
    """A run that was trained without a tracker."""
    return trained_run(*MEASURED, stages=STAGES[:3])


@pytest.fixture
def begun(trained_run: TrainedRuns, tmp_path: Path) -> Path:
    return shutil.copytree(trained_run(stages=STAGES[:2]), tmp_path / "nano")


def test_every_number_of_an_iteration_has_a_name_in_a_group() -> None:
    shown = {field.name for field in fields(Iteration)} - {
        "iteration",
        "lesson",
        "success_by_group",
        "validation_by_group",
        "sharpened",
        "ended",
    }
    assert shown <= set(NAMES)
    assert {name.split("/")[0] for name in NAMES.values()} == {"rollout", "update", "speed"}
    assert len(set(NAMES.values())) == len(NAMES)


def test_what_was_not_measured_has_no_name_in_a_tracker() -> None:
    line = iteration(0, success_by_group={"red": 0.25}, validation_by_group={"red": 0.75}, thought_bleu=0.5)
    done = decode(Iteration, line, "line")
    assert done.by_group == {"success/red": 0.25, "validation_success/red": 0.75}
    assert tracked(done)["rollout/thought_bleu"] == 0.5
    assert {"rollout/validation_success", "rollout/thought_distinct"}.isdisjoint(tracked(done))


@pytest.mark.slow
def test_each_stage_has_a_run_in_all_trackers_which_are_opened_before_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Diary(GeneralTracker):
        """Tracker that keeps what it is sent."""

        name = "dvclive"
        requires_logging_directory = False
        pages: ClassVar[list[dict[str, Any]]] = []
        stopped = ""

        def __init__(self, dir: str, *, resume: bool) -> None:
            super().__init__()
            assert resume
            assert Path(dir).parent == run / "trackers" / "dvclive"
            self.stage = Path(dir).name

        @property
        def tracker(self) -> None:
            return None

        def start(self) -> None:
            if self.stopped:
                raise RuntimeError(self.stopped)

        def store_init_configuration(self, _: dict[str, Any]) -> None:
            self.pages.append({"stage": self.stage})

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            self.pages[-1] |= {f"{name} at {step}": value for name, value in values.items()}

    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "dvclive", Diary)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "dvclive.py").touch()
    run = tmp_path / "run"
    recipe = small_recipe("report_to=[dvclive, tensorboard]", "report_to.name=line")
    Diary.stopped = "no login"
    with pytest.raises(InvalidInput, match=r"dvclive does not start \(no login\); fix that, or set report_to=none"):
        play_stages(recipe, run)
    assert not list(run.glob("sft/*"))  # no episode was played for it
    Diary.stopped = ""
    play_stages(recipe, run)
    data, reflector, policy, rlft, evaluated = Diary.pages
    stages = ["gen-data", "sft-reflector", "sft-policy", "rlft", "eval"]
    assert [page.pop("stage") for page in Diary.pages] == [f"line-{stage}" for stage in stages]
    assert {folder.name for folder in (run / "trackers" / "tensorboard").iterdir()} == {f"line-{s}" for s in stages}
    assert data["data/samples at 0"] > data["data/negatives at 0"] > 0
    for page in (reflector, policy):
        assert page["loss at 1"] > 0
    assert rlft["rollout/success at 1"] == metrics(run)[1]["success"]
    assert 0 <= evaluated["eval/rlft/local/sampled/test/success at 0"] <= 1


@pytest.mark.slow
def test_tensorboard_gets_each_iteration_once_after_a_kill_and_a_few_episodes(begun: Path, alone: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_twice(begun, "tensorboard")
    folder = begun / "trackers" / "tensorboard" / "line-rlft"
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    successes = [(event.step, event.value) for event in events.Scalars("rollout/success")]
    assert successes == [(row["iteration"], pytest.approx(row["success"])) for row in metrics(begun)]
    assert set(events.Tags()["scalars"]) == MEASURED_NAMES
    norms = [event.value for event in events.Scalars("update/grad_norm")]
    assert norms == [pytest.approx(row["grad_norm"], rel=1e-4) for row in metrics(begun)]
    said = [event.tensor_proto.string_val[0].decode() for event in events.Tensors("episodes/0/text_summary")]
    assert {event.step for event in events.Tensors("episodes/0/text_summary")} == {0, 2}
    assert "action: " in said[0]
    assert all(line.startswith("    ") for line in said[0].splitlines())  # nothing in it is Markdown
    assert "episodes/2/text_summary" not in events.Tags()["tensors"]  # record_episodes is 2
    assert "- tensorboard" in events.Tensors("recipe/text_summary")[0].tensor_proto.string_val[0].decode()
    assert results(begun) == results(alone)


@pytest.mark.slow
def test_wandb_without_a_login_is_refused_before_stage_1(tmp_path: Path) -> None:
    env = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online", "HOME": str(tmp_path)}
    process = WarmProcess(tmp_path / "log", train_without_a_login, tmp_path / "run", env=env)
    assert process.wait() == 0, process.said


@pytest.mark.slow
def test_wandb_goes_on_under_its_id_in_the_run_folder(begun: Path, alone: Path) -> None:
    trained_killed_and_trained_on(begun, "wandb", WANDB_BASE_URL="http://127.0.0.1:9", WANDB_MODE="offline")
    name = (begun / "trackers" / "wandb-id-rlft").read_text()
    files = sorted((begun / "trackers" / "wandb").glob("offline-run-*/*.wandb"))
    assert {file.name for file in files} == {f"run-{name}.wandb"}
    first, second = (wandb_rows(file) for file in files)
    assert [row["_step"] for row in first] == [0, 1, 2, 3]
    assert [row["_step"] for row in second] == [2, 3]
    assert [row["rollout/success"] for row in first] == [row["success"] for row in metrics(begun)]
    assert set(first[0]) >= MEASURED_NAMES
    [begun_run] = [record.run for record in wandb_records(files[0]) if record.HasField("run")][:1]
    assert (begun_run.display_name, begun_run.run_group, [*begun_run.tags]) == ("line-rlft", "seeds", ["first", "tiny"])
    tables = sorted((begun / "trackers" / "wandb").glob("offline-run-*/files/media/table/episodes_*"))
    table = json.loads(tables[0].read_text())
    assert table["columns"] == ["step", "lesson", "task", "outcome", "episode_return", "text"]
    assert len(table["data"]) == 2
    assert "action: " in table["data"][0][-1]
    assert results(begun) == results(alone)


@pytest.mark.slow
def test_a_training_that_fails_is_no_finished_run_of_wandb(tmp_path: Path) -> None:
    run = tmp_path / "run"
    env = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "offline", "HOME": str(tmp_path)}
    process = WarmProcess(tmp_path / "log", fail, run, env=env)
    assert process.wait() == 0, process.said
    [file] = (run / "trackers" / "wandb").glob("offline-run-*/*.wandb")
    assert [record.exit.exit_code for record in wandb_records(file) if record.HasField("exit")] == [1]


def wandb_rows(file: Path) -> list[dict[str, Any]]:
    """Return the values of each step in a run of wandb."""
    steps = [record.history.item for record in wandb_records(file) if record.HasField("history")]
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in step} for step in steps]


def wandb_records(file: Path) -> Iterator[Any]:
    """Yield the records of a run of wandb, whose file is a LevelDB log of protocol buffers."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, begun = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        begun += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(begun)
            begun = b""


def running() -> bytes:
    """Return the command lines of all processes."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # gone in the meantime
            lines.append(path.read_bytes())
    return b"\n".join(lines)


@pytest.mark.slow
def test_trackio_keeps_one_run_in_the_run_folder(begun: Path, alone: Path) -> None:
    said = trained_killed_and_trained_on(begun, "trackio")
    [command] = set(re.findall(r"^trackio shows this run: (TRACKIO_DIR=.* trackio show .*)$", said, re.MULTILINE))
    assert said.count("--project") == 2  # one for each start, and trackio itself names no other command
    listed = f"PATH={Path(sys.executable).parent}:$PATH {command.replace('trackio show', 'trackio list runs')}"
    done = subprocess.run(["sh", "-c", listed], capture_output=True, text=True, check=False)
    assert (done.returncode, "line" in done.stdout) == (0, True), done.stderr
    with sqlite3.connect(begun / "trackers" / "trackio" / "reflectrl.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
        group = database.execute("select json_extract(config, '$._Group') from configs").fetchone()
    database.close()
    assert {name for name, _, _ in rows} == {"line-nano-rlft"}  # a database may be shared by the runs of a sweep
    assert group == ("seeds",)
    numbers = [(step, json.loads(text)) for _, step, text in rows]
    successes = [(step, row["rollout/success"]) for step, row in numbers if "rollout/success" in row]
    once = [(row["iteration"], row["success"]) for row in metrics(begun)]
    assert successes == [*once, *once[2:]]  # repeated iterations log the same values again
    shown = [row["episodes"]["_value"] for _, row in numbers if "episodes" in row]
    assert len(shown[0]) == 2
    assert "action: " in shown[0][0]["text"]
    assert results(begun) == results(alone)


def test_a_transcript_has_all_of_each_step_and_is_cut() -> None:
    def episode(text: str, reflection: str | None, written: str = "") -> Trajectory:
        seen, chosen = Observation(text, ("up", "down")), chose(0, "up", -0.5, 0.5)
        turn = turn_of(seen, ("up", "down"), reflection, chosen, 1.0, True)
        if written:
            thinking = replace(chosen, choice=Choice(0, written=Written(written, (1,), (0.0,), 1)))
            turn = replace(turn, decision=thinking, said={"corrector": Utterance("Go down.")})
        return Trajectory(Task("t"), 0, (turn,), True, False, False)

    action = "action: up (61%), reward +1.00, illegal"
    shown = transcript(episode("You are at 3.", "Go up.")).splitlines()
    assert shown == ["step 1", "You are at 3.", "reflection: Go up.", action]
    assert transcript(episode("You are at 3.", None)).splitlines() == ["step 1", "You are at 3.", action]
    thought = transcript(episode("You are at 3.", None, "Go up."))
    assert thought.splitlines() == ["step 1", "You are at 3.", "wrote: Go up.", "corrected: Go down.", action]
    text = transcript(episode("x" * 1_000_000, None))
    assert len(text) < 21_000
    assert text.endswith("more characters]")
