"""Measure how well an environment's nano recipe learns, over seeds and instruction sets, and its ablations.

    python benchmarks/learning.py taxi                  # with and without reflection: trains missing runs, publishes
    python benchmarks/learning.py taxi --ablations      # the other arms, compared with some of those runs
    python benchmarks/learning.py line --seeds 40-41    # fewer seeds: the tables on stdout only
    timeout 20m python benchmarks/learning.py explore   # for 20 minutes: the same command continues where it stopped

Other instruction sets round sums differently, and learning is chaotic: the same seed on another processor gives another
run. So each seed of the two main arms, and of the arm with the menu first, is run once in each of ``ROUNDINGS``, in its
own process and folder and on one thread. Choose settings with other seeds, and on the validation split.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from arms import (
    ENVIRONMENTS,
    HERE,
    LEARNING,
    RUNS,
    Arm,
    made_by,
    plan,
    publish,
    publish_rows,
    published_rows,
    spread,
    table,
)

from reflectrl.config import load_recipe
from reflectrl.core import ReflectRLError
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.sweep import PlannedRun, run_all, unfinished
from reflectrl.report.compare import HEADS, Rows, compare, group_cells
from reflectrl.report.runs import RunData, read_runs

Column = Callable[[Sequence[RunData]], str]
"""Function that returns an arm's cell of an additional column, from its runs."""

SHORT = "learning_short"
"""Mark of the table in the README of the repository."""
SHOWN = ("runs", "SFT", "mean", "worst", "least gain")
"""Columns of the published tables."""
CONTROLS: Mapping[str, tuple[str, str, str | None]] = {
    "SFT, without": ("silent", "sft", None),
    "SFT": ("reflecting", "sft", None),
    "RLFT, without": ("silent", "rlft", None),
    "**RLFT**": ("reflecting", "rlft", None),
    "blank": ("reflecting", "rlft", "blank"),
    "of other states": ("reflecting", "rlft", "shuffled"),
    "the expert's": ("reflecting", "rlft", "expert"),
}
"""Columns of the table of controls: arm, policy, and whose reflections it reads; ``None`` for its recipe's own."""


def arm_of(run: RunData) -> str:
    """Return the name of the arm of a run."""
    return run.name.partition("-")[0]


def split_of(recipe: str) -> str:
    """Return the name of the split that a recipe's tables show."""
    return load_recipe(recipe).eval.splits[0]


def runs_of(arm: Arm, runs: Sequence[RunData]) -> list[RunData]:
    """Return the runs of an arm."""
    return [run for run in runs if arm_of(run) == arm.name]


def reached(split: str, runs: Sequence[RunData]) -> list[str]:
    """Return the cells ``SHOWN`` of the runs of one arm, from sampled episodes of ``split``."""
    (summary,), _ = compare(runs, Rows(split=split))
    found = dict(zip(HEADS, group_cells(summary), strict=True))
    found["worst"] = found["worst"].partition(" ")[0]  # without the run's name
    return [found[head] for head in SHOWN]


def minutes(runs: Sequence[RunData]) -> str:
    """Return the mean processor minutes of SFT and RLFT."""
    seconds = [sum(each.cpu_seconds for each in run.times if each.name in ("sft", "rlft")) for run in runs]
    return f"{fmean(seconds) / 60:.1f}"


def controls(env: str, runs: Sequence[RunData]) -> list[list[str]]:
    """Return the rows of all evaluations of the main arms: sampled, greedy, and on further splits."""
    section = load_recipe(ENVIRONMENTS[env].recipe).eval
    first, *others = section.splits
    parts = {
        "sampled": ("sampled", first),
        "greedy": ("greedy", first),
        **{split: ("sampled", split) for split in others},
    }
    about = ENVIRONMENTS[env]
    arms = {arm.name: runs_of(arm, runs) for arm in (about.silent, about.reflecting)}
    lines = []
    for name, (mode, split) in parts.items():
        rates = [
            Rows(policy, split, mode, reflections).successes(arms[arm])
            for arm, policy, reflections in CONTROLS.values()
        ]
        mean = spread if name == "sampled" else _mean
        lines.append([env, name, *(mean(each) if each else "-" for each in rates)])
    return lines


def _mean(rates: Sequence[float]) -> str:
    return f"{100 * fmean(rates):.0f}"


def commits(runs: Sequence[RunData]) -> list[str]:
    """Return the different commits at which the runs were started."""
    return sorted({run.origin.commit for run in runs if run.origin and run.origin.commit})


def machines(runs: Sequence[RunData]) -> str | None:
    """Return the different machines on which the runs were started; ``None`` if no run recorded its own."""
    return " and ".join(sorted({run.origin.hardware for run in runs if run.origin and run.origin.hardware})) or None


def learned(env: str, arms: Sequence[Arm], runs: Sequence[RunData]) -> list[list[str]]:
    """Return the rows of the arms of an environment that have runs."""
    split = split_of(ENVIRONMENTS[env].recipe)
    trained = [(arm.title, own) for arm in arms if (own := runs_of(arm, runs))]
    return [[env, title, *reached(split, own), minutes(own)] for title, own in trained]


def short_report(page: Path) -> str:
    """Return the table of the repository's README: a row for each environment that has rows on ``page``."""
    found = {(row["environment"], row["trained"]): row for row in published_rows(page, "learning")}
    greedy = {row["environment"]: row for row in published_rows(page, "controls") if row["episodes"] == "greedy"}
    lines = []
    for env, about in ENVIRONMENTS.items():
        ours, silent = (found.get((env, arm.title)) for arm in (about.reflecting, about.silent))
        also = greedy.get(env)
        if ours and silent and also:
            reached = [
                f"{ours['SFT']} ({also['SFT']})",
                f"**{ours['mean']}** ({also['**RLFT**']})",
                f"**{ours['worst']}**",
                ours["least gain"],
                f"{silent['mean']} ({also['RLFT, without']})",
            ]
            lines.append([about.title, f"`{about.recipe}`", ours["runs"], *reached])
    heads = ("", "recipe", "runs", "SFT", "**Reflect-RL**", "worst run", "least gain", "without reflection")
    return f"""{table(heads, lines)}

Success in per cent, with sampled actions (in brackets: greedy), on tasks with which no training episode begins. Mean
over runs, seeds times two instruction sets, with a 95 % interval; least gain: a run's smallest over its own SFT, in
points. From [the results](benchmarks/results/learning.md), by `python benchmarks/learning.py ENV`; [every
table](docs/results.md), with pretrained models and GPUs.
"""


def ablated_runs(env: str, runs: Path, seeds: str | None = None, overrides: Sequence[str] = ()) -> list[Path]:
    """Return the folders of the finished runs with reflection that the ablations are compared with."""
    planned = plan(env, (ENVIRONMENTS[env].ablated,), seeds, runs, overrides)
    left = {run.folder for run in unfinished(planned)}
    return [run.folder for run in planned if run.folder not in left]


def sitting(
    planning: Callable[[], list[PlannedRun]],
    jobs: int,
    record_of: Callable[[PlannedRun], Path | None] = lambda _: None,
) -> tuple[list[Path], bool, int]:
    """Train the missing runs until all are finished, or the process is stopped by Ctrl-C or SIGTERM.

    Args:
        planning: function that returns the list of runs, or raises an error.
        jobs: number of runs at a time.
        record_of: function that returns the folder in which a finished run is recorded, if it is.

    Returns:
        The folders of the finished runs, whether these are all, and the exit code.

    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    reporter, code, planned, recorded = Reporter(), 0, list[PlannedRun](), dict[Path, Path]()
    try:
        everything = planning()
        recorded = {run.folder: record for run in everything if (record := record_of(run)) is not None}
        planned = [run for run in everything if run.folder not in recorded]
        run_all(unfinished(planned), jobs=jobs, reporter=reporter)
    except (KeyboardInterrupt, SystemExit):
        reporter.line("stopped; the same command continues from here")
        code = 1
    except ReflectRLError as error:
        reporter.line(f"error: {error}")
        code = error.exit_code
        if code != 1:  # no run was started
            return [], False, code
    left = {run.folder for run in unfinished(planned)}
    done = [*recorded.values(), *(run.folder for run in planned if run.folder not in left)]
    reporter.line(f"{len(done)} of {len(recorded) + len(planned)} runs are done")
    return done, not left, code


def main() -> int:
    """Train the missing runs, print the tables of the finished ones, and publish them if all are finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=[*ENVIRONMENTS])
    parser.add_argument(
        "--ablations", action="store_true", help="the other arms, instead of the one without reflection"
    )
    parser.add_argument("--seeds", help="such as 40-44 or 40,42; those of the published tables by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=RUNS / "learning", help="folder of the run folders")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the recipes, for a quick look")
    given = parser.parse_intermixed_args()
    about, quick = ENVIRONMENTS[given.env], given.seeds or given.overrides
    arms = (about.ablated, *about.ablations) if given.ablations else (about.silent, about.reflecting)
    done, whole, code = sitting(lambda: plan(given.env, arms, given.seeds, given.runs, given.overrides), given.jobs)
    if not done:
        return code
    runs = read_runs(done)
    rows, controlled = learned(given.env, arms, runs), [] if given.ablations else controls(given.env, runs)
    print(made_by(f"python benchmarks/learning.py {given.env}", machines(runs), commits(runs)))
    print(f"\n{table(('environment', 'trained', *SHOWN, 'minutes'), rows)}")
    print(f"\n{table(('environment', 'episodes', *CONTROLS), controlled)}" if controlled else "")
    if quick or not whole:
        return code
    publish_rows(LEARNING, "learning", rows)
    if controlled:
        publish_rows(LEARNING, "controls", controlled)
        publish(HERE.parent / "README.md", SHORT, short_report(LEARNING))
    return code


if __name__ == "__main__":
    sys.exit(main())
