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
    ROUNDINGS,
    RUNS,
    Arm,
    content,
    made_by,
    objectives,
    plan,
    publish,
    spread,
    table,
)

from reflectrl.config import load_recipe
from reflectrl.core import ReflectRLError
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.sweep import PlannedRun, run_all, unfinished
from reflectrl.report.compare import HEADS, Rows, Summary, compare, group_cells
from reflectrl.report.runs import Run, read_runs
from reflectrl.rollout.results import EvalRow

Column = Callable[[Sequence[Run]], str]
"""Function that returns an arm's cell of an additional column, from its runs."""

SILENT = "SFT + RLFT without reflection"
"""Title of the row of the runs without reflection."""
SHORT = "learning_short"
"""Mark of the table in the README of the repository."""
EXPLAINED = """SFT: mean success before RLFT. Mean with a 95 % interval over runs; IQM: mean of the middle half of the
runs, with a bootstrap interval. P(> SFT): probability that a run ends above one before RLFT; least gain: of a run over
its own SFT; P(> first): probability that a run ends above one of the first row. Fall: largest distance of a training's
end from its own best, whichever weights were kept. Minutes: processor minutes of SFT and RLFT; env steps: those of
RLFT."""


def arm_of(run: Run) -> str:
    """Return the name of the arm of a run."""
    return run.name.partition("-")[0]


def rounding_of(run: Run) -> str:
    """Return the name of the instruction set of a run."""
    return run.name.split("-")[1]


def split_of(recipe: str) -> str:
    """Return the name of the split that a recipe's tables show."""
    return load_recipe(recipe).eval.splits[0]


def summaries(split: str, runs: Sequence[Run]) -> dict[str, Summary]:
    """Return the summary of each arm by its name, in the order of the runs."""
    return {summary.scores[0].run.partition("-")[0]: summary for summary in compare(runs, Rows(split=split))[0]}


def _minutes(runs: Sequence[Run]) -> str:
    seconds = [sum(each.cpu_seconds for each in run.times if each.name in ("sft", "rlft")) for run in runs]
    return f"{fmean(seconds) / 60:.1f}"


def _env_steps(runs: Sequence[Run]) -> str:
    return f"{fmean(run.points[-1].env_steps if run.points else 0 for run in runs):,.0f}"


COSTS: Mapping[str, Column] = {"minutes": _minutes, "env steps": _env_steps}
"""Columns of the mean processor minutes and environment steps of training."""


def comparison(
    split: str,
    arms: Sequence[Arm],
    runs: Sequence[Run],
    roundings: Sequence[str] = ("all",),
    columns: Mapping[str, Column] = COSTS,
) -> str:
    """Return the table of some arms, over all runs and over those of each instruction set.

    Args:
        split: split of the success rates.
        arms: arms of the table, one per row.
        runs: runs of these arms; others are ignored.
        roundings: instruction sets with separate rows; ``all`` stands for all of them.
        columns: additional columns by their heads.

    """
    titles = {arm.name: arm.title for arm in arms}
    order = sorted((run for run in runs if arm_of(run) in titles), key=lambda run: [*titles].index(arm_of(run)))
    lines = []
    for rounding in roundings:
        chosen = [run for run in order if rounding in ("all", rounding_of(run))]
        for arm, summary in summaries(split, chosen).items() if chosen else ():
            cells = group_cells(summary)[1:]
            where = [rounding] if len(roundings) > 1 else []
            own = [run for run in chosen if arm_of(run) == arm]
            lines.append([titles[arm], *where, *cells, *(column(own) for column in columns.values())])
    instructions = ["instructions"] if len(roundings) > 1 else []
    return table(("", *instructions, *HEADS[1:], *columns), lines)


def rows_of(
    runs: Sequence[Run], policy: str, reflections: str, mode: str, split: str, group: str = ""
) -> list[EvalRow]:
    """Return the matching evaluation row of each run that has one.

    ``reflections="own"`` means the reflections of the run's own recipe.
    """
    wanted = (policy, mode, split, group)
    return [
        row
        for run in runs
        for row in run.rows
        if (row.policy, row.mode, row.split, row.group) == wanted
        and (row.reflections == reflections or (reflections == "own" and row.reflections in (run.reflector, "none")))
    ]


def evaluations(env: str, runs: Sequence[Run]) -> str:
    """Return the table of all evaluations of the main arms."""
    section = load_recipe(ENVIRONMENTS[env].recipe).eval
    first, *others = section.splits
    parts = [(first, group) for group in section.groups] + [(split, "") for split in others]
    arms = {name: [run for run in runs if arm_of(run) == name] for name in ("silent", "reflecting")}
    lines = []
    for title, arm, policy, reflections in (
        ("random", "reflecting", "random", "own"),
        ("SFT, without reflection", "silent", "sft", "own"),
        ("SFT, with reflection", "reflecting", "sft", "own"),
        (SILENT, "silent", "rlft", "own"),
        ("**Reflect-RL**", "reflecting", "rlft", "own"),
        ("its policy, reflections blank", "reflecting", "rlft", "blank"),
        ("its policy, reflections of other states", "reflecting", "rlft", "shuffled"),
        ("its policy, the expert's reflections", "reflecting", "rlft", "expert"),
        ("expert", "reflecting", "expert", "own"),
    ):
        sampled = rows_of(arms[arm], policy, reflections, "sampled", first)
        if not sampled:
            continue
        values = [row.metrics.success for row in sampled]
        greedy = rows_of(arms[arm], policy, reflections, "greedy", first)
        beside = [rows_of(arms[arm], policy, reflections, "sampled", *part) for part in parts]
        cells = [_mean(rows) for rows in (greedy, *beside)]
        steps = f"{fmean(row.metrics.length for row in sampled):.1f}"
        lines.append([title, spread(values), f"{100 * min(values):.0f}", *cells, steps])
    heads = ["", "success %", "worst %", "greedy %", *(f"{group or split} %" for split, group in parts), "steps"]
    return table(heads, lines)


def _mean(rows: Sequence[EvalRow]) -> str:
    return f"{100 * fmean(row.metrics.success for row in rows):.0f}" if rows else "-"


def commits(runs: Sequence[Run]) -> list[str]:
    """Return the different commits at which the runs were started."""
    return sorted({run.origin.commit for run in runs if run.origin and run.origin.commit})


def machines(runs: Sequence[Run]) -> str | None:
    """Return the different machines on which the runs were started; ``None`` if no run recorded its own."""
    return " and ".join(sorted({run.origin.hardware for run in runs if run.origin and run.origin.hardware})) or None


def report(env: str, runs: Sequence[Run], command: str) -> str:
    """Return the tables of the main arms' finished runs."""
    about = ENVIRONMENTS[env]
    recipe = load_recipe(about.recipe)
    row = rows_of(runs, "rlft", "own", "sampled", recipe.eval.splits[0])[0]
    return f"""{made_by(command, machines(runs), commits(runs))}, one thread a run.
Each seed was run once with each instruction set ({" and ".join(ROUNDINGS)}), which round sums differently; intervals
take all runs as independent. {row.metrics.episodes} sampled episodes a run over the {row.tasks} tasks of split
{row.split}. {about.played}
{EXPLAINED}
{objectives(recipe)}

{comparison(row.split, (about.silent, about.reflecting), runs, ("all", *ROUNDINGS))}

Everything that was evaluated, over the same runs; "greedy" plays each task once with the most probable actions; columns
between it and steps, if any, are sampled, of a part of the tasks or another split:

{evaluations(env, runs)}
"""


def ablations_report(env: str, runs: Sequence[Run], command: str) -> str:
    """Return the table of the finished ablations, below Reflect-RL with the same seeds."""
    about = ENVIRONMENTS[env]
    return f"""{made_by(command, machines(runs), commits(runs))}, one thread a run.
Rows of ten runs have five seeds with each instruction set ({" and ".join(ROUNDINGS)}), others five with the first.
{EXPLAINED}
{objectives(load_recipe(about.recipe))}

{comparison(split_of(about.recipe), (about.reflecting, *about.ablations), runs)}
"""


def short_report(page: Path) -> str:
    """Return the table of the repository's README: a row for each environment that has a table on ``page``."""
    lines = []
    for env, about in ENVIRONMENTS.items():
        text = content(page, f"learning_{env}")
        rows = [line.split(" | ")[1:] for line in text.splitlines() if line.startswith("| ")]  # without titles
        of_all = [dict(zip(rows[0], row, strict=True)) for row in rows if row[0] == "all"]
        for silent, ours in [of_all] if of_all else []:
            worst = [each["worst"].split()[0] for each in (ours, silent)]  # drop the run's name
            lines.append(
                [
                    about.title,
                    f"`{about.recipe}`",
                    ours["runs"],
                    ours["SFT"],
                    f"**{ours['mean']}**",
                    f"**{worst[0]}**",
                    ours["least gain"],
                    silent["mean"],
                    worst[1],
                ]
            )
    heads = ("", "recipe", "runs", "SFT", "**Reflect-RL**", "worst run", "least gain")
    without = ("without reflection", "its worst run")
    return f"""Success in per cent, with sampled actions, on tasks with which no training episode begins. Mean over runs
with a 95 % interval; each seed was run with two instruction sets of the CPU. Least gain: the smallest
gain of any run over its own SFT, in points. From the tables of `benchmarks/README.md`, which `python
benchmarks/learning.py ENV` made.

{table((*heads, *without), lines)}
"""


def published(env: str, title: str) -> str:
    """Return the published success of a row of an environment's evaluations, as printed, or "-" if there is none."""
    rows = [line.split(" | ") for line in content(HERE / "README.md", f"learning_{env}").splitlines()]
    return next((row[1] for row in rows if row[0] == f"| {title}"), "-")


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
    asked = [*(["--ablations"] if given.ablations else []), *(["--seeds", given.seeds] if given.seeds else [])]
    command = " ".join(["python benchmarks/learning.py", given.env, *asked, *given.overrides])  # without --runs
    text = (ablations_report if given.ablations else report)(given.env, read_runs(done), command)
    print(text)
    if quick or not whole:
        return code
    publish(HERE / "README.md", f"{'ablations' if given.ablations else 'learning'}_{given.env}", text)
    if not given.ablations:
        publish(HERE.parent / "README.md", SHORT, short_report(HERE / "README.md"))
    return code


if __name__ == "__main__":
    sys.exit(main())
