"""Small trained runs, shared by all tests and processes of a test session, and helpers to make similar ones."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from filelock import FileLock
from rich.console import Console

from reflectrl.config import Recipe, load_recipe
from reflectrl.core.run_files import RECIPE
from reflectrl.pipeline import STAGES, run_stages
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.inputs import stage_inputs

SHORT = (
    "model.builtin.layers=1",
    "data.samples=300",
    "data.noise=0",
    "sft.reflector.steps=4",
    "sft.reflector.learning_rate=3e-3",
    "sft.policy.steps=4",
    "rlft.lessons.0.iterations=4",
    "rlft.save_every=2",
    "rlft.episodes=6",
    "rlft.validation=null",
    "rlft.record_episodes=2",
    "eval.episodes=12",
)
"""Overrides that make a run of two tiny models short in any environment."""

SMALL = ("env.options.size=8", *SHORT)
"""Overrides with which a run of ``number_line/nano`` takes two seconds."""


def small_recipe(*overrides: str, name: str = "number_line/nano") -> Recipe:
    """Return a shipped recipe, or a recipe file, with ``SMALL`` and then ``overrides`` applied."""
    return load_recipe(name, [*SMALL, *overrides])


def play_stages(recipe: Recipe, run: Path, *stages: str) -> str:
    """Run stages (by default all) in this process, and return the text that a terminal would have shown."""
    shown = io.StringIO()
    run_stages(recipe, run, stages or STAGES, reporter=Reporter(Console(file=shown, width=200)))
    return shown.getvalue()


class TrainedRuns:
    """Memoised runs of ``small_recipe``, in a folder that all workers of a test session share; see the fixture.

    ``trained_run()`` returns the path of a run of all stages, ``trained_run("seed=7", stages=STAGES[:2])`` that of
    another one without RLFT and evaluation. The first request trains the run, others wait for it. Runs whose gen-data
    and sft have equal inputs begin as copies of one run of these stages. The folder is shared: a test that changes
    anything in it must copy it first (``shutil.copytree``), or the session ends with an error.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, dict[str, int]] = {}

    def __call__(self, *overrides: str, stages: Sequence[str] = STAGES, name: str = "number_line/nano") -> Path:
        recipe = small_recipe(*overrides, name=name)

        def train(run: Path) -> None:
            # a run without a third stage keeps the recipe.yaml that it begins with
            if stages[:2] == STAGES[:2] and (stages[2:] or load_recipe(self._begun(recipe) / RECIPE) == recipe):
                self.begin(recipe, run)
            play_stages(recipe, run, *stages)

        run = self._once([name, overrides, stages], train)
        self._seen.setdefault(run, _written(run))
        return run

    def begin(self, recipe: Recipe, run: Path) -> Path:
        """Make a new run of the first two stages, whose ``recipe.yaml`` may have other settings of later stages."""
        return shutil.copytree(self._begun(recipe), run)

    def _begun(self, recipe: Recipe) -> Path:
        return self._once(stage_inputs(recipe, STAGES[1]), lambda run: play_stages(recipe, run, *STAGES[:2]))

    def _once(self, about: object, train: Callable[[Path], object]) -> Path:
        """Return the run that ``train`` has written in this session, or writes now if there is none."""
        key = sha256(json.dumps(about).encode()).hexdigest()[:12]
        run, done = self._folder / key / "small", self._folder / key / "done"
        run.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / key / "lock"):
            if not done.exists():
                train(run)
                done.touch()
        return run

    def check(self) -> None:
        """Fail if a test of this or another process has changed a shared run."""
        changed = [str(run) for run, before in self._seen.items() if _written(run) != before]
        assert not changed, f"tests changed shared runs, which they have to copy first: {changed}"


def _written(run: Path) -> dict[str, int]:
    """Return the modification times of a run's files, except the lock, which readers touch too."""
    files = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.stat().st_mtime_ns for path in files}
