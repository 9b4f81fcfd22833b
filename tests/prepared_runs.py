"""A run with a chat model as the teacher, with copies from before and after each stage."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from scripted_endpoint import ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.pipeline import STAGES
from reflectrl.pipeline.console import Advance, Reporter

TAUGHT = (
    "env.options.size=8",
    "model.builtin.layers=1",
    "data.teacher=openai",
    "data.samples=60",
    "data.concurrency=2",
    "sft.reflector.steps=4",
    "sft.policy.steps=104",
    "sft.policy.held_out=0.4",
    "sft.policy.batch_size=4",
    "sft.policy.micro_batch_size=4",
    "rlft.lessons.0.iterations=6",
    "rlft.save_every=2",
    "rlft.episodes=6",
    "rlft.record_episodes=2",
    "rlft.validation={episodes: 6}",
    "eval.episodes=12",
    "eval.policies=[random, rlft]",
)


@dataclass
class Prepared:
    """An undisturbed run with a chat endpoint as the teacher, with copies from before and after each stage."""

    recipe: Recipe
    overrides: list[str]
    folder: Path
    endpoint: ScriptedEndpoint

    def before(self, stage: str) -> Path:
        place = STAGES.index(stage)
        return self.folder / (STAGES[place - 1] if place else "nothing")

    def after(self, stage: str) -> Path:
        return self.folder / stage

    def copy_before(self, stage: str, run: Path) -> Path:
        return shutil.copytree(self.before(stage), run)

    def command(self, stage: str, run: Path) -> list[str]:
        where = ["--recipe", "number_line/nano", "--runs", str(run.parent), "--run", run.name]
        return [stage, *where, *self.overrides]


def files(run: Path) -> dict[str, bytes]:
    """Return the contents of a run folder, without the lock and the ledger, which contains times."""
    found = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name not in (".lock", "stages.json")}


def results(run: Path) -> dict[str, bytes]:
    """Return the results of a run, which are the same bytes however often it was interrupted."""
    others = ("checkpoints/", "calls/", "throughput.jsonl", "trackers/")
    return {name: content for name, content in files(run).items() if not name.startswith(others)}


class Interfering(Reporter):
    """Reporter that calls a function the first time that a stage reports progress."""

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
