"""One kill of each stage, by the means of the benchmark that does fifty of them."""

from __future__ import annotations

import io
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from reflectrl.config import Recipe, load_recipe
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.folder import RunFolder
from reflectrl.rollout.results import read_results

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from kills import Command, Kind, differing, kept_replies
from scripted_teacher import CONCURRENCY, NAME, Teacher, write_recipe


@dataclass
class Straight:
    """A run that nobody disturbed, as it was after each stage."""

    folder: Path
    teacher: Teacher
    path: Path
    recipe: Recipe

    def after(self, stage: str) -> Path:
        return self.folder / stage / NAME

    def before(self, stage: str, run: Path) -> Path:
        """A copy of it."""
        if STAGES.index(stage):
            shutil.copytree(self.after(STAGES[STAGES.index(stage) - 1]), run)
        return run

    def go_on(self, run: Path, stage: str, *overrides: str) -> str:
        """Start the stage once more; what is said."""
        said = io.StringIO()
        recipe = load_recipe(str(self.path), overrides)
        run_stages(recipe, run, (stage,), reporter=Reporter(Console(file=said)))
        return said.getvalue()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Straight]:
    folder = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch, Teacher() as teacher:
        patch.setenv("NO_PROXY", "127.0.0.1")
        path = write_recipe(folder, teacher.url)
        made = Straight(folder, teacher, path, load_recipe(str(path)))
        for stage in STAGES:
            run = made.before(stage, made.after(stage))
            made.go_on(run, stage)
        yield made


def killed(straight: Straight, stage: str, run: Path, delay_s: float) -> Path:
    """A run in which ``stage`` was killed so long after the first thing that it wrote."""
    command = Command(Kind(stage), straight.path, straight.before(stage, run), run.parent / "log.txt")
    command.until_written()
    command.until(delay_s)
    assert command.process.poll() is None, f"it ended before it could be killed: {command.log.read_text()}"
    command.end(signal.SIGKILL)
    assert not RunFolder(run).is_done(stage)
    return run


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "longest_s"), [("sft", 0.5), ("rlft", 0.3), ("eval", 0.1)])
def test_a_stage_that_is_killed_at_work_and_started_again_ends_with_the_same_bytes(
    stage, longest_s, straight, tmp_path
):
    run = killed(straight, stage, tmp_path / NAME, random.uniform(0.0, longest_s))
    straight.go_on(run, stage)
    assert differing(run, straight.after(stage)) == []


@pytest.mark.slow
def test_gen_data_that_is_killed_pays_for_no_reply_twice(straight, tmp_path):
    straight.teacher.forget()
    run = killed(straight, "gen-data", tmp_path / NAME, 0.4)
    while straight.teacher.active:
        time.sleep(0.01)
    answered, kept = set(straight.teacher.answered), kept_replies(run)
    assert 0 < len(kept) < len(kept_replies(straight.after("gen-data")))
    assert len(answered - kept) <= CONCURRENCY
    straight.teacher.forget()
    straight.go_on(run, "gen-data")
    assert differing(run, straight.after("gen-data")) == []
    assert not kept & set(straight.teacher.answered)


def half_judged(straight: Straight, run: Path) -> dict[str, int]:
    """Leave an evaluation as one that was killed after two rows would; when their episodes were written."""
    shutil.copytree(straight.after("eval"), run)
    rows = [line for line in (run / "eval.jsonl").read_bytes().splitlines(keepends=True) if b'"group": ""' in line]
    (run / "eval.jsonl").unlink()
    (run / "eval.partial.jsonl").write_bytes(b"".join(rows[:2]) + rows[2][:20])
    ledger = run / "stages.json"
    ledger.write_text(ledger.read_text().replace('"done": true', '"done": false', 1))  # eval is the first by name
    return {path.name: path.stat().st_mtime_ns for path in (run / "trajectories").glob("eval-*")}


def test_rows_of_an_evaluation_that_are_there_are_not_played_again(straight, tmp_path):
    run = tmp_path / NAME
    before = half_judged(straight, run)
    straight.go_on(run, "eval")
    assert differing(run, straight.after("eval")) == []
    kept = {name for name, written in before.items() if (run / "trajectories" / name).stat().st_mtime_ns == written}
    rows = [row for row in read_results(run / "eval.jsonl") if not row.group]
    assert len(rows) > 3
    assert kept == {f"eval-{row.policy}-{row.reflections}-{row.mode}.jsonl" for row in rows[:2]}


def test_a_half_evaluation_of_other_episodes_is_begun_anew(straight, tmp_path):
    run = tmp_path / NAME
    before = half_judged(straight, run)
    assert "inputs changed: evaluating again" in straight.go_on(run, "eval", "eval.episodes=5")
    sampled = [row for row in read_results(run / "eval.jsonl") if row.mode == "sampled"]
    assert {row.metrics.episodes for row in sampled} == {5}
    assert not (run / "eval.partial.jsonl").exists()
    assert all((run / "trajectories" / name).stat().st_mtime_ns > written for name, written in before.items())
