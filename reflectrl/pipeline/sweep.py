"""Sweeps: one recipe with several arms, seeds and settings, each in its own run folder and process."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from reflectrl.config import Recipe, check_recipe, load_recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.origin import usable_cores
from reflectrl.core.run_files import STAGES
from reflectrl.core.text import shortened
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.folder import RunFolder

SWEEP_LOG = "sweep.log"
MAX_RUNS = 10_000
"""Maximum number of runs in a sweep; more are taken for a mistake in ``--seeds`` or ``--grid``."""
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class PlannedRun:
    """One run of a sweep."""

    folder: Path
    recipe: str
    overrides: tuple[str, ...]
    """Overrides of the recipe, the seed among them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the run's process, in addition to those of this one."""
    arm: str | None = None
    """Arm of the recipe; ``None`` for the recipe itself."""

    def command(self, extra: Sequence[str] = ()) -> list[str]:
        """Return the command of the run; ``extra`` are further options of ``reflectrl run``."""
        return [sys.executable, "-m", "reflectrl", *self.words(self.folder, extra)]

    def words(self, folder: Path, extra: Sequence[str] = ()) -> list[str]:
        """Return the arguments of ``reflectrl`` that repeat this run in ``folder``."""
        words = ["run", "--recipe", self.recipe, "--runs", str(folder.parent)]
        words += [] if self.arm is None else ["--arm", self.arm]
        return [*words, "--run", folder.name, *extra, *self.overrides]

    @property
    def log(self) -> Path:
        """File in the run folder with the output of the run."""
        return self.folder / SWEEP_LOG


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds such as ``0-9`` or ``0,3,5-7``; a seed that is named twice is run once.

    Raises:
        InvalidInput: text of another form, or more than ``MAX_RUNS`` seeds.
    """
    seeds: dict[int, None] = {}
    for part in text.split(","):
        ends = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if not first <= last < first + MAX_RUNS:
            raise InvalidInput(f"--seeds {text} was given; expected numbers and rising ranges, such as 0-9 or 0,3,5-7.")
        seeds |= dict.fromkeys(range(first, last + 1))
    return tuple(seeds)


def read_values(text: str, option: str = "--grid") -> tuple[str, tuple[str, ...]]:
    """Read a key and its values, such as ``rlft.gamma=0.9,1``; commas in brackets separate no values.

    Raises:
        InvalidInput: no key, or no value.
    """
    key, _, given = text.partition("=")
    depth, parts = 0, [""]
    for sign in given:
        depth += (sign in "[{") - (sign in "]}")
        if sign == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    values = tuple(part.strip() for part in parts)
    if not key.strip() or not all(values):
        raise InvalidInput(f"{option} {text} was given; expected a key and its values, such as rlft.gamma=0.9,1.")
    return key.strip(), tuple(dict.fromkeys(values))


def plan_runs(
    runs: Path,
    name: str,
    recipe: str,
    seeds: Sequence[int],
    grid: Sequence[tuple[str, tuple[str, ...]]] = (),
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    arms: Sequence[str | None] = (None,),
) -> list[PlannedRun]:
    """Return one run for each arm, seed and choice of the grid's values, arm by arm and seed by seed.

    Names of run folders begin with ``name``, e.g. ``nano-gamma0.9-seed3``; ``overrides`` and variables of the
    ``environment`` are the same for all runs. The arm ``None`` is the recipe itself.

    Raises:
        InvalidInput: a key that is given twice, or too many runs.
    """
    keys = ["seed", *(key for key, _ in grid)]
    given = [*keys, *(each.partition("=")[0] for each in overrides)]
    if keys.count("seed") > 1:
        raise InvalidInput("seed was given to --grid; use --seeds for it, such as --seeds 0-4.")
    if twice := next((key for key in keys if given.count(key) > 1), None):
        raise InvalidInput(f"{twice} is set twice, by --seeds or --grid and once more; give it once.")
    short = [key.rpartition(".")[2] for key in keys]
    words = [last if short.count(last) == 1 else key for key, last in zip(keys, short, strict=True)]
    planned: list[PlannedRun] = []
    for arm, seed, *values in itertools.product(arms, map(str, seeds), *(values for _, values in grid)):
        if len(planned) == MAX_RUNS:
            raise InvalidInput(f"--seeds and --grid ask for more than {MAX_RUNS:,} runs; ask for fewer.")
        parts = [f"{word}{value}" for word, value in zip(words[1:], values, strict=True)] + [f"seed{seed}"]
        folder = "-".join(
            [name if arm is None else f"{name}_{arm}", *(re.sub(r"[^\w.+-]+", "_", part) for part in parts)]
        )
        changes = [f"{key}={value}" for key, value in zip(keys, (seed, *values), strict=True)]
        planned.append(PlannedRun(runs / folder, recipe, (*overrides, *changes), environment or {}, arm))
    if len({run.folder for run in planned}) < len(planned):
        raise InvalidInput("two choices of --grid have the same folder name; sweep them one after the other.")
    return planned


def unfinished(planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Check the recipes of all runs, and return the runs that are not done.

    Raises:
        InvalidInput: a recipe with mistakes, or a folder that was begun with other inputs.
    """
    waiting = []
    for each in planned:
        recipe = load_recipe(each.recipe, each.overrides, arm=each.arm)
        check_recipe(recipe)
        if not _is_done(each.folder, recipe):
            waiting.append(each)
    return waiting


def _is_done(folder: Path, recipe: Recipe) -> bool:
    """Return whether all stages of ``recipe`` are done in ``folder``, with these inputs."""
    run = RunFolder(folder)
    if recipe.budget is not None:
        from reflectrl.pipeline.auto import kept  # torch takes seconds to import

        recipe = kept(recipe, run)
    for stage in STAGES[:-1]:
        run.check(recipe, stage)
    if not all(map(run.is_done, STAGES)) or run.changed("eval"):
        return False
    try:
        run.check(recipe, "eval")
    except InvalidInput:  # it is evaluated again
        return False
    return True


def shared_environment(jobs: int) -> Mapping[str, str]:
    """Return the environment variables of each of ``jobs`` processes, which share the cores."""
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // jobs)), **os.environ}


def run_all(planned: Sequence[PlannedRun], *, jobs: int, reporter: Reporter, extra: Sequence[str] = ()) -> None:
    """Run ``planned``, ``jobs`` at a time, each as ``reflectrl run``; done stages are skipped, killed ones continue.

    Torch's threads are divided among the jobs unless ``OMP_NUM_THREADS`` is set; results are equal to the last bit for
    an equal number of threads only. ``extra`` are further options of the command.

    Raises:
        WorkFailed: some runs failed; the others were finished.
    """
    environment = shared_environment(jobs)
    waiting, working, failed = list(planned)[::-1], list[Worker](), list[PlannedRun]()
    with reporter.stage("sweep") as advance:
        try:
            while waiting or working:
                while waiting and len(working) < jobs:
                    working.append(Worker(waiting.pop(), extra, environment))
                for worker in [each for each in working if each.process.poll() is not None]:
                    working.remove(worker)
                    worker.log.close()
                    if worker.process.returncode:
                        failed.append(worker.run)
                    reporter.line(worker.sentence())
                    done = len(planned) - len(waiting) - len(working)
                    advance(done, len(planned), f"{len(failed)} failed" if failed else "")
                time.sleep(POLL_SECONDS)
        finally:
            for worker in working:
                worker.stop()
            for worker in working:
                worker.process.wait()
                worker.log.close()
    if failed:
        logs = ", ".join(str(run.log) for run in failed[:5])
        raise WorkFailed(
            f"{len(failed)} of {len(planned)} runs failed; the reasons end the logs {logs}. The same command repeats "
            "them and skips the others."
        )


def commands_text(
    planned: Sequence[PlannedRun], launcher: Literal["print", "slurm"], jobs: int, extra: Sequence[str] = ()
) -> str:
    """Return the commands of ``planned``: one a line, or a job array for ``sbatch``, whose log files are the runs'.

    An array has at most ``jobs`` runs at a time, if that is more than 1.
    """
    commands = [shlex.join(run.command(extra)) for run in planned]
    if launcher == "print":
        return "\n".join(commands)
    array = f"0-{len(planned) - 1}{f'%{jobs}' if jobs > 1 else ''}"
    head = ["#SBATCH --job-name=reflectrl", f"#SBATCH --array={array}", "#SBATCH --output=/dev/null"]
    logs = [f"mkdir -p {shlex.quote(str(run.folder))} && exec >> {shlex.quote(str(run.log))} 2>&1" for run in planned]
    cases = [f"{number}) {log}; {command} ;;" for number, (log, command) in enumerate(zip(logs, commands, strict=True))]
    begin = f"cd {shlex.quote(str(Path.cwd()))}"  # recipes and runs are relative to it
    return "\n".join(["#!/bin/bash", *head, begin, 'case "$SLURM_ARRAY_TASK_ID" in', *cases, "esac"])


class Worker:
    """Process of one run, with ``extra`` options of ``reflectrl run``.

    It keeps open the file descriptors ``holds``, such as those of locks.
    """

    def __init__(
        self, run: PlannedRun, extra: Sequence[str], environment: Mapping[str, str], holds: Sequence[int] = ()
    ) -> None:
        self.run, self.began = run, time.monotonic()
        run.log.parent.mkdir(parents=True, exist_ok=True)
        self.log: IO[bytes] = run.log.open("ab")
        # in a session of its own, so that Ctrl-C reaches it only once, from this process
        self.process = subprocess.Popen(
            run.command(extra),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={**environment, **run.environment},
            start_new_session=True,
            pass_fds=holds,
        )

    def stop(self) -> None:
        """Request a stop: the process ends its step and writes a checkpoint."""
        self.process.send_signal(signal.SIGTERM)

    def sentence(self) -> str:
        """Return a line on the end of the run."""
        minutes = f"{(time.monotonic() - self.began) / 60:.1f} min"
        if self.process.returncode:
            lines = self.run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            return f"{self.run.folder.name}  failed after {minutes}: {shortened(lines[-1] if lines else '', 200)}"
        return f"{self.run.folder.name}  done in {minutes}"
