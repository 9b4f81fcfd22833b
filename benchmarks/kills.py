"""Check that a run that is killed anywhere and started again ends with the same bytes as one that never was.

A tiny run of AutoExplore, whose questions and reflections come from a scripted chat endpoint with faults, is made once
undisturbed. Then, again and again, a stage of a copy is started, ended at a random moment, and started once more. Most
are ended by SIGKILL, as a power cut would, every fifth by SIGTERM or SIGINT.

    python benchmarks/kills.py --kills 50 --seed 0

What is compared is every file of the run folder, but for checkpoints, calls (which are kept in the order in which their
replies came) and clocks. A call may be made twice only if its reply was under way at the kill.
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

from scripted_teacher import CONCURRENCY, NAME, Teacher, write_recipe

from reflectrl.core.layout import STAGES
from reflectrl.pipeline.folder import RunFolder

# ---- one command -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """Stage and number of processes that are killed."""

    stage: str
    processes: int = 1

    @property
    def name(self) -> str:
        """Name in the table."""
        return self.stage if self.processes == 1 else f"{self.stage}, {self.processes} ranks"

    def command(self, recipe: Path, run: Path) -> list[str]:
        """Command that starts it."""
        asked = [self.stage, "--recipe", str(recipe), "--runs", str(run.parent), "--run", run.name]
        if self.processes == 1:
            return [sys.executable, "-m", "reflectrl", *asked]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(self.processes)]
        return [sys.executable, *launch, "-m", "--", "reflectrl", *asked]


KINDS = (*map(Kind, STAGES), Kind("rlft", 2))


def begun(run: Path, stage: str) -> bool:
    """Return whether the ledger has ``stage``."""
    ledger = run / "stages.json"
    return ledger.is_file() and f'"{stage}": {{' in ledger.read_text(encoding="utf-8")


def entries(run: Path) -> set[str]:
    """Visible entries of a run folder."""
    return {path.name for path in run.iterdir() if not path.name.startswith(".")} if run.is_dir() else set()


class Command:
    """A stage at work in a session of its own; times are seconds since its start."""

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
        """Since the start."""
        return time.monotonic() - self._start

    def until_begun(self) -> float:
        """Wait for the moment at which it has read the recipe."""
        return self._until(lambda: begun(self._run, self._kind.stage))

    def until_written(self) -> float:
        """Wait for the first thing that it writes."""
        return self._until(lambda: bool(entries(self._run) - self._there))

    def until_end(self) -> float:
        """Wait for its end; anything but success is an error."""
        if self.process.wait(timeout=300) != 0:
            raise RuntimeError(f"{self._kind.name} ended with {self.process.returncode}:\n{self.log.read_text()}")
        return self.seconds

    def until(self, seconds: float) -> float:
        """Wait for so long."""
        began = time.monotonic()
        return self._until(lambda: time.monotonic() - began >= seconds)

    def _until(self, ready: Callable[[], bool]) -> float:
        while not ready() and self.process.poll() is None:
            time.sleep(0.002)
        return self.seconds

    def end(self, number: signal.Signals) -> str | None:
        """End it; a person's signal has to be answered by advice. Returns what was wrong."""
        if number is signal.SIGKILL:
            kill_tree(self.process.pid)
            self.process.wait()
            return None
        self.process.send_signal(number)
        code, said = self.process.wait(timeout=120), self.log.read_text(encoding="utf-8")
        good = code == 128 + number and "same command goes on" in said and "Traceback" not in said
        return None if good else f"{number.name} was answered by exit code {code} and:\n{said}"


def kill_tree(root: int) -> None:
    """SIGKILL for a process and all that it started, in whatever sessions; returns when they are gone."""
    tree = [root]
    for process in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)  # it starts no more of them
            tree += _children(process)
    for process in tree:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while any(_alive(process) for process in tree):
        time.sleep(0.002)


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


# ---- what is compared ------------------------------------------------------------------------------------------------


def results(run: Path) -> dict[str, bytes]:
    """Every file that a run is made for, hidden leftovers included."""
    found = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
        and path.relative_to(run).parts[0] not in ("checkpoints", "calls", "throughput.jsonl", ".lock")
    }
    stages = json.loads(found["stages.json"])
    for entry in stages.values():
        entry.pop("wall_seconds", None), entry.pop("cpu_seconds", None)
        entry.get("artefacts", {}).pop("throughput.jsonl", None)
    return {**found, "stages.json": json.dumps(stages).encode()}


def differing(run: Path, other: Path) -> list[str]:
    """The files that are not the same in both."""
    one, two = results(run), results(other)
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def kept_replies(run: Path) -> set[str]:
    """The replies that are on the disk, but for a line that was torn."""
    lines = [line for path in run.glob("calls/*/replies.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return {text for line in lines if (text := json.loads(line)["text"]) is not None}


# ---- the benchmark ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Straight:
    """A stage that was not killed."""

    before: Path
    after: Path
    begun: float
    """Seconds after its start, as the next two."""
    written: float
    ended: float


@dataclass(frozen=True)
class Trial:
    """One kill."""

    kind: Kind
    number: signal.Signals
    moment: float
    """Seconds after the start of the command."""
    faults: Sequence[str]
    under_way: int
    """Replies that were lost with the process; they are asked for again."""
    seconds: float


class Kills:
    """All runs are below ``place``."""

    def __init__(self, place: Path, teacher: Teacher) -> None:
        self._place, self._teacher = place, teacher
        self._recipe = write_recipe(place, teacher.url)
        self._straight: dict[Kind, Straight] = {}

    def straight(self, kind: Kind) -> Straight:
        """An undisturbed run of a stage, and of those before it; made once."""
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
        """Kill it once, at work; then let it come to its end, and compare."""
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
        """Until a random moment: one in five before the first thing is written."""
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
    """SIGKILL, but every fifth a person's; torchrun has answers of its own to those."""
    gentle = index % 5 == 4 and kind.processes == 1
    return rng.choice((signal.SIGTERM, signal.SIGINT)) if gentle else signal.SIGKILL


def main() -> int:
    """Kill, compare, count."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's background job ignores it, as would its children
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
    print(
        "\n| stage | kills | of them by a signal | calls under way | identical | seconds |\n|---|---|---|---|---|---|"
    )
    for kind in KINDS:
        these = [trial for trial in trials if trial.kind == kind]
        gentle = sum(trial.number is not signal.SIGKILL for trial in these)
        lost, good = sum(trial.under_way for trial in these), sum(not trial.faults for trial in these)
        seconds = sum(trial.seconds for trial in these)
        print(f"| {kind.name} | {len(these)} | {gentle} | {lost} | {good} | {seconds:.0f} |")
    good = sum(not trial.faults for trial in trials)
    print(f"\n{good} of {len(trials)} identical; {time.monotonic() - began:.0f} seconds")
    return int(good < len(trials))


if __name__ == "__main__":
    sys.exit(main())
