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
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

import suite_envs
from arms import HERE, ONE_THREAD, table
from learning import sitting

from reflectrl.core.text import counted
from reflectrl.pipeline.sweep import PlannedRun, plan_runs, read_seeds
from reflectrl.report.compare import Rows
from reflectrl.report.runs import RunData, read_runs

REFERENCES: Mapping[str, tuple[float, str]] = {
    "bandit_rooms": (1.0, "planning: the right door of each room is fixed"),
    "hedge_maze": (0.96, "play: untried ways, best towards the bells; tests/benchmarks plays it"),
    "ice": (1.0, "planning: a way around the holes has six steps"),
    "levers": (1.0, "planning: the signs say what to pull"),
    "number_hunt": (1.0, "planning: halving finds one of 15 numbers with four guesses"),
    "triage_free": (1.0, "planning: two answers say which of the four treatments is right"),
}
"""Best known success of the members without expert, and how it was found."""
MODES = ("sampled", "greedy")


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


def plan(
    names: Sequence[str], seeds: Sequence[int], minutes: float, out: Path, overrides: Sequence[str] = ()
) -> list[PlannedRun]:
    """Return the runs of some members, seed by seed, after writing a recipe for each member into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    planned = []
    for name in names:
        recipe = out / f"{name}.yaml"
        recipe.write_text(
            f"name: {name}\nenv: {{name: '{suite_envs.target(name)}'}}\nbudget: {{minutes: {minutes:g}}}\n", "utf-8"
        )
        planned += plan_runs(
            out, name, str(recipe), seeds, overrides=overrides, environment={**ONE_THREAD, "PYTHONPATH": paths}
        )
    return sorted(planned, key=lambda run: int(run.folder.name.rpartition("seed")[2]))


def score(run: RunData) -> Score:
    """Return the results of a finished run."""
    member = run.name.rpartition("-seed")[0]
    sampled, greedy = ({name: row.metrics.success for name, row in Rows(mode=mode).of(run).items()} for mode in MODES)
    reference = REFERENCES[member][0] if member in REFERENCES else sampled["expert"]
    seconds = sum(time.cpu_seconds for time in run.times)
    return Score(
        member,
        run.seed or 0,
        sampled["random"],
        sampled.get("sft"),
        sampled["rlft"],
        greedy.get("rlft"),
        reference,
        seconds,
    )


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
                f"({worst.member}-seed{worst.seed})"
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


def main() -> int:
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
    done, _, code = sitting(
        lambda: plan(names, read_seeds(options.seeds), options.minutes, options.out.absolute(), overrides), options.jobs
    )
    print(report([score(run) for run in read_runs(done)]) if done else "no run is finished")
    return code


if __name__ == "__main__":
    sys.exit(main())
