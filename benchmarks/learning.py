"""How well an environment's nano recipe learns, over seeds and over instruction sets, with and without reflection.

    python benchmarks/learning.py taxi                   # trains what is missing, prints the table, and publishes it
    python benchmarks/learning.py line --seeds 10-11     # fewer seeds: the table on stdout only
    timeout 20m python benchmarks/learning.py explore    # a sitting: the same command continues where it was stopped

Sums are rounded differently with other instructions, and learning is chaotic: the same seed on another processor is
another run. So each seed is run once in each of ``ROUNDINGS``, in a process and a folder of its own and on one thread.
Choose settings on other seeds than these, and on the validation split.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from arms import HERE, ONE_THREAD, RUNS, made_by, objectives, publish, table

from reflectrl.config import load_recipe
from reflectrl.core import ReflectRLError
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.sweep import PlannedRun, plan_runs, read_seeds, run_all, unfinished
from reflectrl.report.compare import HEADS, Rows, compare, group_cells
from reflectrl.report.runs import Run, read_runs

ROUNDINGS: Mapping[str, Mapping[str, str]] = {
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
"""Instruction sets, with the environment variables that select them."""
SILENT = ("players.reflector.player=none", "eval.controls=[]")


@dataclass(frozen=True)
class Arm:
    """A recipe with its name in folders and in the table."""

    name: str
    title: str
    recipe: str
    overrides: tuple[str, ...] = ()


def _arms(reflecting: str, silent: str | None = None) -> tuple[Arm, Arm]:
    """Return the arms without and with reflection; without a recipe of its own, the former is that of the latter."""
    without = Arm("silent", "without reflection", silent or reflecting, () if silent else SILENT)
    return without, Arm("reflecting", "**Reflect-RL**", reflecting)


ENVIRONMENTS: Mapping[str, tuple[Arm, Arm]] = {
    "taxi": _arms("dangerous_taxi/nano", "dangerous_taxi/nano_no_reflection"),
    "ride": _arms("dangerous_taxi/nano_full"),
    "line": _arms("number_line/nano"),
    "explore": _arms("auto_explore/nano", "auto_explore/nano_no_reflection"),
    "alfworld": _arms("alfworld/nano", "alfworld/nano_no_reflection"),
}


def published_seeds(env: str) -> str:
    """Seeds of the published table of an environment."""
    return "10-19" if env == "taxi" else "10-14"


def plan(env: str, seeds: Sequence[int], runs: Path, overrides: Sequence[str] = ()) -> list[PlannedRun]:
    """Return the runs of an environment, all of a seed before those of the next."""
    groups = [
        plan_runs(
            runs / env,
            f"{arm.name}-{rounding}",
            arm.recipe,
            seeds,
            overrides=(*arm.overrides, *overrides),
            environment={**ONE_THREAD, **variables},
        )
        for arm in ENVIRONMENTS[env]
        for rounding, variables in ROUNDINGS.items()
    ]
    return [run for same_seed in zip(*groups, strict=True) for run in same_seed]


def report(env: str, runs: Sequence[Run], command: str) -> str:
    """Return the table of the runs that are done: all of them, then those of each instruction set."""
    rows = Rows(split=load_recipe(ENVIRONMENTS[env][1].recipe).eval.splits[0])
    titles = {arm.name: arm.title for arm in ENVIRONMENTS[env]}
    order = sorted(runs, key=lambda run: list(titles).index(run.name.partition("-")[0]))
    lines = []
    for rounding in ("all", *ROUNDINGS):
        chosen = [run for run in order if rounding in ("all", run.name.split("-")[1])]
        for summary in compare(chosen, rows)[0] if chosen else []:
            arm = summary.scores[0].run.partition("-")[0]
            lines.append([titles[arm], rounding, *group_cells(summary)[1:]])
    row = next(row for row in runs[0].own_rows if (row.policy, row.split, row.mode) == ("rlft", rows.split, rows.mode))
    return f"""{made_by(command)}, one thread a run.
Each seed was run once with each instruction set ({" and ".join(ROUNDINGS)}), which round sums differently; intervals
take all runs as independent. {row.metrics.episodes} sampled episodes a run over the {row.tasks} tasks of split
{rows.split}. SFT: mean success before RLFT. Mean with a 95 % t interval over runs; IQM: mean of the middle half of the
runs, with a bootstrap interval. P(> SFT): probability that a run ends above one before RLFT; least gain: of a run over
its own SFT; P(> first): probability that a run ends above one without reflection. Fall: largest distance of a
training's end from its own best.
{objectives(load_recipe(ENVIRONMENTS[env][1].recipe))}

{table(("", "instructions", *HEADS[1:]), lines)}
"""


def main() -> int:
    """Run what is missing, then print the table of what is done."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=[*ENVIRONMENTS])
    parser.add_argument("--seeds", help="such as 10-14 or 10,12; those of the published table by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=RUNS / "learning", help="folder of the run folders")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the recipes, for a quick look")
    given = parser.parse_intermixed_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    reporter, code = Reporter(), 0
    try:
        planned = plan(given.env, read_seeds(given.seeds or published_seeds(given.env)), given.runs, given.overrides)
        run_all(unfinished(planned), jobs=given.jobs, reporter=reporter)
    except (KeyboardInterrupt, SystemExit):
        reporter.line("stopped; the same command continues from here")
        code = 1
    except ReflectRLError as error:
        reporter.line(f"error: {error}")
        code = error.exit_code
        if code != 1:  # nothing was run
            return code
    left = {run.folder for run in unfinished(planned)}
    done = [run.folder for run in planned if run.folder not in left]
    reporter.line(f"{len(done)} of {len(planned)} runs are done")
    if not done:
        return code
    command = " ".join(["python benchmarks/learning.py", *sys.argv[1:]])
    text = report(given.env, read_runs(done), command)
    print(text)
    if not left and not given.overrides and given.seeds in (None, published_seeds(given.env)):
        publish(HERE / "README.md", f"learning_{given.env}", text)
    return code


if __name__ == "__main__":
    sys.exit(main())
