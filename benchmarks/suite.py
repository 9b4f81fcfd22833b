"""Train in each environment of the development suite with default settings, and measure how much of the gap is closed.

    python benchmarks/suite.py --out /tmp/suite                       # all members, seeds 0 to 2: hours
    python benchmarks/suite.py ice triage --seeds 0 --out /tmp/suite  # some members
    python benchmarks/suite.py --out /tmp/other rlft.gamma=0.95       # with a changed setting, in another folder

Defaults are chosen on this suite, by its median and its worst member, never for one member. Each run is a process with
one thread. A finished run is not run again, so the same command continues where it was stopped. closed = (success after
RLFT - random) / (reference - random), where the reference is the expert's success, or the best known one of a member
without expert. Success is of sampled actions on the test split.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import suite_envs
from arms import HERE, ONE_THREAD, table

from reflectrl.core import InvalidInput, ReflectRLError
from reflectrl.core.run_files import RESULTS
from reflectrl.core.text import counted
from reflectrl.pipeline.sweep import read_seeds
from reflectrl.rollout.results import EvalRow, read_results

REFERENCES: Mapping[str, tuple[float, str]] = {
    "bandit_rooms": (1.0, "planning: the right door of each room is fixed"),
    "ice": (1.0, "planning: a way around the holes has six steps"),
    "levers": (1.0, "planning: the signs say what to pull"),
    "number_hunt": (1.0, "planning: halving finds one of 15 numbers with four guesses"),
    "triage_free": (1.0, "planning: two answers say which of the four treatments is right"),
}
"""Best known success of the members without expert, and how it was found; tests/benchmarks/test_suite.py plays it."""
CONTROLS = ("blank", "shuffled", "expert")
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Score:
    """Success rates of a finished run on the test split, and its processor time."""

    member: str
    seed: int
    random: float
    sft: float | None
    """``None`` of a run without SFT."""
    rlft: float
    greedy: float | None
    reference: float
    """Success of the expert, or the best known one."""
    cpu_seconds: float

    @property
    def taught(self) -> bool:
        """True if the member has an expert."""
        return self.member not in REFERENCES

    @property
    def closed(self) -> float:
        """Share of the gap between random play and the reference that RLFT closed; below 0 if it ended below random."""
        return (self.rlft - self.random) / (self.reference - self.random)


@dataclass(frozen=True)
class PlannedRun:
    """One run of the suite."""

    member: str
    seed: int
    minutes: float
    out: Path
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Run folder."""
        return self.out / f"{self.member}-s{self.seed}"

    @property
    def log(self) -> Path:
        """File with the output of the run."""
        return self.folder.with_suffix(".log")

    @property
    def record(self) -> Path:
        """File with the command of the run, its processor seconds, and whether it is finished."""
        return self.folder.with_suffix(".json")

    def command(self) -> list[str]:
        """Return the command line of the run."""
        return [
            *(sys.executable, "-m", "reflectrl", "train", suite_envs.target(self.member)),
            *("--minutes", f"{self.minutes:g}", "--seed", str(self.seed)),
            *("--runs", str(self.out), "--run", self.folder.name),
            *self.overrides,
        ]

    def recorded(self) -> dict[str, object]:
        """Return the content of the record; a new one if there is none.

        Raises:
            InvalidInput: the folder belongs to another command.

        """
        if not self.record.exists():
            return {"command": self.command()[1:], "cpu_seconds": 0.0, "finished": False}
        found: dict[str, object] = json.loads(self.record.read_text(encoding="utf-8"))
        if found["command"] != self.command()[1:]:
            raise InvalidInput(f"{self.record} is of the command {found['command']}; choose another --out.")
        return found

    def score(self) -> Score | None:
        """Return the run's results; ``None`` if it is not finished."""
        record = self.recorded()
        if not record["finished"]:
            return None
        return score(self.member, self.seed, read_results(self.folder / RESULTS), float(str(record["cpu_seconds"])))


def score(member: str, seed: int, rows: Sequence[EvalRow], cpu_seconds: float) -> Score:
    """Return the results of a run whose evaluation has these rows."""
    found = {
        (row.policy, row.mode): row.metrics.success
        for row in rows
        if row.split == "test" and not row.group and row.reflections not in CONTROLS
    }
    reference = REFERENCES[member][0] if member in REFERENCES else found["expert", "sampled"]
    sft, greedy = found.get(("sft", "sampled")), found.get(("rlft", "greedy"))
    return Score(
        member, seed, found["random", "sampled"], sft, found["rlft", "sampled"], greedy, reference, cpu_seconds
    )


def run_all(planned: Sequence[PlannedRun], jobs: int) -> None:
    """Run what is not finished, ``jobs`` processes at a time, and say how each ended."""
    waiting = [run for run in reversed(planned) if not run.recorded()["finished"]]
    working: dict[PlannedRun, subprocess.Popen[bytes]] = {}
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    try:
        while waiting or working:
            while waiting and len(working) < jobs:
                run = waiting.pop()
                run.out.mkdir(parents=True, exist_ok=True)
                with run.log.open("ab") as log:
                    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": paths}
                    working[run] = subprocess.Popen(
                        run.command(), stdout=log, stderr=log, env=environment, start_new_session=True
                    )
            for run, process in list(working.items()):
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    del working[run]
                    process.returncode = os.waitstatus_to_exitcode(status)
                    _end(run, process.returncode, usage.ru_utime + usage.ru_stime)
            time.sleep(POLL_SECONDS)
    finally:
        for process in working.values():  # stopped: each ends its step and writes a checkpoint
            process.send_signal(signal.SIGTERM)
        for run, process in working.items():
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            _end(run, process.returncode, usage.ru_utime + usage.ru_stime)


def _end(run: PlannedRun, code: int, seconds: float) -> None:
    """Record and report the end of a process, which may not be the first of its run."""
    record = run.recorded()
    record |= {"cpu_seconds": float(str(record["cpu_seconds"])) + seconds, "finished": code == 0}
    run.record.write_text(json.dumps(record), encoding="utf-8")
    lines = run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    told = "done" if code == 0 else f"ended with code {code}: {lines[-1] if lines else ''}"
    print(f"{run.folder.name}: {told} ({seconds:.0f} s of processor time)", file=sys.stderr, flush=True)


def report(scores: Sequence[Score]) -> str:
    """Return the table of the members, and below it the median and the worst share of the gap that was closed.

    A member's share is the mean over its seeds.
    """
    members = {score.member: [each for each in scores if each.member == score.member] for score in scores}
    heads = ("member", "teacher", "seeds", "random", "SFT", "RLFT", "worst", "greedy", "reference")
    lines = [
        [name, *_cells(own)] for name, own in sorted(members.items(), key=lambda item: (not item[1][0].taught, item[0]))
    ]
    said = [table((*heads, "closed", "worst", "CPU s"), lines), ""]
    for title, taught in (("with an expert", True), ("without an expert", False)):
        chosen = [score for score in scores if score.taught == taught]
        if chosen:
            means = {
                name: fmean(each.closed for each in own) for name, own in members.items() if own[0].taught == taught
            }
            worst = min(chosen, key=lambda each: each.closed)
            said.append(
                f"closed, {counted(len(means), 'member')} {title}: median {median(means.values()):.2f}, worst member "
                f"{min(means.values()):.2f} ({min(means, key=lambda name: means[name])}), worst run {worst.closed:.2f} "
                f"({worst.member}-s{worst.seed})"
            )
    return "\n".join(said)


def _cells(own: Sequence[Score]) -> list[str]:
    """Return the cells of a member, without its name."""
    rlft, closed = [each.rlft for each in own], [each.closed for each in own]
    means = [_percent([each.random for each in own]), _percent([each.sft for each in own]), _percent(rlft)]
    ends = [_percent([min(rlft)]), _percent([each.greedy for each in own]), _percent([each.reference for each in own])]
    shares = [f"{fmean(closed):.2f}", f"{min(closed):.2f}", f"{fmean(each.cpu_seconds for each in own):.0f}"]
    return ["expert" if own[0].taught else "none", str(len(own)), *means, *ends, *shares]


def _percent(values: Sequence[float | None]) -> str:
    """Format the mean of the values that there are, in per cent."""
    known = [value for value in values if value is not None]
    return f"{100 * fmean(known):.0f}" if known else "-"


def _stop(number: int, _: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run what is missing, and print the table of all finished runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("given", nargs="*", metavar="NAME|KEY=VALUE", help="members, by default all, and overrides")
    parser.add_argument("--seeds", default="0-2", help="such as 0-2 or 0,5 (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=15.0, help="budget of each run (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run folders")
    options = parser.parse_intermixed_args()
    overrides = tuple(each for each in options.given if "=" in each)
    names = [each for each in options.given if "=" not in each] or suite_envs.MODULES
    if unknown := sorted(set(names) - set(suite_envs.MODULES)):
        parser.error(f"{unknown[0]!r} is not a member; expected one of {', '.join(suite_envs.MODULES)}")
    signal.signal(signal.SIGTERM, _stop)  # ends the children, too
    try:
        planned = [
            PlannedRun(name, seed, options.minutes, options.out.absolute(), overrides)
            for seed in read_seeds(options.seeds)
            for name in names
        ]
        run_all(planned, options.jobs)
        scores = [score for run in planned if (score := run.score())]
    except ReflectRLError as error:
        sys.exit(f"error: {error}")
    print(report(scores) if scores else "no run is finished")


if __name__ == "__main__":
    main()
