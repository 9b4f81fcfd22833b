"""Check that a run that is killed at any moment and restarted ends with the same bytes as an undisturbed one.

A tiny run of AutoExplore, with questions and reflections from a scripted chat endpoint with faults, is made once
undisturbed. Then a stage of a copy is started, stopped at a random moment and restarted, many times. Most are stopped
by SIGKILL, as in a power cut, every fifth by SIGTERM or SIGINT.

    python benchmarks/kills.py --kills 50 --seed 0

All files of the run folder are compared, except checkpoints, calls (which are stored in the order of their replies) and
times. A call may be made twice only if its reply was in flight at the kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from arms import RELIABILITY, publish, table
from scripted_teacher import CONCURRENCY, NAME, Teacher, write_recipe

from reflectrl.core.run_files import STAGES
from reflectrl.pipeline.folder import RunFolder

# ---- one command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A stage to kill, and its number of processes."""

    stage: str
    processes: int = 1

    @property
    def name(self) -> str:
        """Name of this kind in the table."""
        return self.stage if self.processes == 1 else f"{self.stage}, {self.processes} ranks"

    def command(self, recipe: Path, run: Path) -> list[str]:
        """Return the command that starts the stage."""
        asked = [self.stage, "--recipe", str(recipe), "--runs", str(run.parent), "--run", run.name]
        if self.processes == 1:
            return [sys.executable, "-m", "reflectrl", *asked]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(self.processes)]
        return [sys.executable, *launch, "-m", "--", "reflectrl", *asked]


KINDS = (*map(Kind, STAGES), Kind("rlft", 2))
PUBLISHED = 15
"""Minimum number of kills of the published table."""


def begun(run: Path, stage: str) -> bool:
    """Return whether the ledger has ``stage``."""
    ledger = run / "stages.json"
    return ledger.is_file() and f'"{stage}": {{' in ledger.read_text(encoding="utf-8")


def entries(run: Path) -> set[str]:
    """Return the names of the visible files and folders of a run folder."""
    return {path.name for path in run.iterdir() if not path.name.startswith(".")} if run.is_dir() else set()


class Command:
    """A stage that runs in a separate process session; times are seconds since its start."""

    def __init__(self, kind: Kind, recipe: Path, run: Path, log: Path) -> None:
        self._kind, self._run, self.log = kind, run, log
        self._there = entries(run) | {"stages.json", "recipe.yaml"}
        self._start = time.monotonic()
        with log.open("w", encoding="utf-8") as said:
            self.process = subprocess.Popen(
                kind.command(recipe, run),
                stdout=said,
                stderr=said,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"},
            )

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def until_begun(self) -> float:
        """Wait until the stage has read the recipe."""
        return self._until(lambda: begun(self._run, self._kind.stage))

    def until_written(self) -> float:
        """Wait until the stage has written its first file."""
        return self._until(lambda: bool(entries(self._run) - self._there))

    def until_end(self) -> float:
        """Wait until the stage has ended, which must be successful."""
        if self.process.wait(timeout=300) != 0:
            raise RuntimeError(f"{self._kind.name} ended with {self.process.returncode}:\n{self.log.read_text()}")
        return self.seconds

    def until(self, seconds: float) -> float:
        """Wait for some seconds, or until the stage has ended."""
        began = time.monotonic()
        return self._until(lambda: time.monotonic() - began >= seconds)

    def _until(self, ready: Callable[[], bool]) -> float:
        while not ready() and self.process.poll() is None:
            time.sleep(0.002)
        return self.seconds

    def end(self, number: signal.Signals) -> str | None:
        """Stop the stage with a signal, and return what was wrong.

        After SIGTERM or SIGINT, it has to print how to continue.
        """
        if number is signal.SIGKILL:
            kill_tree(self.process.pid)
            self.process.wait()
            return None
        self.process.send_signal(number)
        code, said = self.process.wait(timeout=120), self.log.read_text(encoding="utf-8")
        good = code == 128 + number and "same command" in said and "Traceback" not in said
        return None if good else f"{number.name} was answered by exit code {code} and:\n{said}"


def kill_tree(root: int) -> None:
    """Kill a process and all its descendants in any session by SIGKILL, and wait until they are gone."""
    tree = [root]
    for process in tree:
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            os.kill(process, signal.SIGSTOP)  # a stopped process starts no further ones
            tree += [child.pid for child in psutil.Process(process).children()]
    for process in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while any(_alive(process) for process in tree):
        time.sleep(0.002)


def _alive(process: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(process).status() != psutil.STATUS_ZOMBIE)
    return False


# ---- comparison ------------------------------------------------------------------------------------------------------


def results(run: Path) -> dict[str, bytes]:
    """Return the files to compare, including hidden leftovers."""
    found = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
        and path.relative_to(run).parts[0] not in ("checkpoints", "calls", "throughput.jsonl", ".lock")
    }
    stages = json.loads(found["stages.json"])
    for entry in stages.values():
        entry.pop("wall_seconds", None), entry.pop("cpu_seconds", None)
        entry.get("products", {}).pop("throughput.jsonl", None)
    return {**found, "stages.json": json.dumps(stages).encode()}


def differing(run: Path, other: Path) -> list[str]:
    """Return the names of the files that differ between two runs."""
    one, two = results(run), results(other)
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def kept_replies(run: Path) -> set[str]:
    """Return the replies on the disk, without a last line that was cut off."""
    lines = [line for path in run.glob("calls/*/replies.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return {text for line in lines if (text := json.loads(line)["text"]) is not None}


# ---- the benchmark ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Straight:
    """A stage that was not killed: its folders and times."""

    before: Path
    after: Path
    begun: float
    """Seconds from its start until it has read the recipe; the next two are also seconds from its start."""
    written: float
    ended: float


@dataclass(frozen=True)
class Trial:
    """The result of one kill."""

    kind: Kind
    number: signal.Signals
    moment: float
    """Seconds from the start of the command to the kill."""
    faults: Sequence[str]
    under_way: int
    """Number of replies that were in flight at the kill, and are requested again."""
    seconds: float


class Kills:
    """Undisturbed and killed runs, all in folders below ``place``."""

    def __init__(self, place: Path, teacher: Teacher) -> None:
        self._place, self._teacher = place, teacher
        self._recipe = write_recipe(place, teacher.url)
        self._straight: dict[Kind, Straight] = {}

    def straight(self, kind: Kind) -> Straight:
        """Return an undisturbed run of a stage and of those before it; it is made once."""
        if kind not in self._straight:
            stage = STAGES.index(kind.stage)
            after = self._folder(f"straight-{kind.stage}-{kind.processes}")
            before = self.straight(Kind(STAGES[stage - 1])).after if stage else self._folder("nothing")
            command = self._start(kind, before, after)
            self._straight[kind] = Straight(
                before, after, command.until_begun(), command.until_written(), command.until_end()
            )
        return self._straight[kind]

    def kill(self, kind: Kind, number: signal.Signals, rng: random.Random) -> Trial:
        """Kill a stage once while it works, run it again to its end, and compare."""
        straight, run = self.straight(kind), self._folder("killed")
        while True:
            command = self._start(kind, straight.before, run)
            moment = self._wait(command, straight, rng.random())
            if command.process.poll() is None:
                fault = command.end(number)
                if not RunFolder(run).is_done(kind.stage):
                    break
        kept, answered = kept_replies(run), self._answered()
        again = self._start(kind, run, run)
        faults = [fault] if fault else []
        try:
            again.until_end()
            faults += [f"{name} differs" for name in differing(run, straight.after)]
        except RuntimeError as error:
            faults.append(str(error))
        if kind.stage == "gen-data":
            faults += [f"asked twice, although the reply was kept: {one!r}" for one in kept & {*self._answered()}]
            if len(lost := {*answered} - kept) > CONCURRENCY:
                faults.append(f"{len(lost)} replies were lost")
        else:
            lost = set()
        return Trial(kind, number, moment, faults, len(lost), command.seconds)

    def _wait(self, command: Command, straight: Straight, chance: float) -> float:
        """Wait until a random moment; one in five is before the first file is written."""
        if chance < 0.2:
            command.until_begun()
            return command.until((straight.written - straight.begun) * chance / 0.2)
        command.until_written()
        return command.until((straight.ended - straight.written) * (chance - 0.2) / 0.8)

    def _answered(self) -> list[str]:
        while self._teacher.active:
            time.sleep(0.01)
        return self._teacher.answered

    def _folder(self, name: str) -> Path:
        return self._place / name / NAME

    def _start(self, kind: Kind, before: Path, run: Path) -> Command:
        if before != run:
            shutil.rmtree(run, ignore_errors=True)
            run.parent.mkdir(exist_ok=True)
            if before.exists():
                shutil.copytree(before, run)
        self._teacher.forget()
        return Command(kind, self._recipe, run, run.parent / "log.txt")


def signals(index: int, kind: Kind, rng: random.Random) -> signal.Signals:
    """Choose the signal: SIGTERM or SIGINT for every fifth kill, unless torchrun handles them, otherwise SIGKILL."""
    gentle = index % 5 == 4 and kind.processes == 1
    return rng.choice((signal.SIGTERM, signal.SIGINT)) if gentle else signal.SIGKILL


def table_of(trials: Sequence[Trial]) -> str:
    """Return the table of the kills of each stage."""
    rows = []
    for kind in KINDS:
        these = [trial for trial in trials if trial.kind == kind]
        gentle = sum(trial.number is not signal.SIGKILL for trial in these)
        lost, good = sum(trial.under_way for trial in these), sum(not trial.faults for trial in these)
        rows.append([kind.name, *map(str, (len(these), gentle, lost, good))])
    return table(("stage", "kills", "of them SIGTERM or SIGINT", "calls under way", "identical"), rows)


def main() -> int:
    """Make all kills, print the table, and publish it if there were enough and all left the same bytes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job of a shell ignores SIGINT, and so would its children
    rng, began = random.Random(given.seed), time.monotonic()
    trials: list[Trial] = []
    with tempfile.TemporaryDirectory(prefix="kills-") as place, Teacher() as teacher:
        kills = Kills(Path(place), teacher)
        for kind in KINDS:
            took = kills.straight(kind)
            print(f"{kind.name:14} undisturbed {took.ended:5.1f} s, writes after {took.written:.1f} s", flush=True)
        for index in range(given.kills):
            kind = rng.choice(KINDS)
            trials.append(trial := kills.kill(kind, signals(index, kind, rng), rng))
            verdict = "; ".join(trial.faults) or "identical"
            print(f"{index:3} {kind.name:14} {trial.number.name} after {trial.moment:5.1f} s: {verdict}", flush=True)
    good = sum(not trial.faults for trial in trials)
    print(
        f"\n{(found := table_of(trials))}\n\n{good} of {len(trials)} identical; {time.monotonic() - began:.0f} seconds"
    )
    if good == len(trials) >= PUBLISHED:
        publish(RELIABILITY, "kills", f"{found}\n")
    return int(good < len(trials))


if __name__ == "__main__":
    sys.exit(main())
