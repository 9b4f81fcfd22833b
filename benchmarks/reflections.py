"""Measure how right the reflector is in each nano environment, and what the policy makes of it, from finished runs.

    python benchmarks/reflections.py          # after learning.py ENV --ablations for all environments
    python benchmarks/reflections.py taxi     # one of them, on stdout only

Nothing is trained: the runs are those that the ablations are compared with. The sampled test episodes of each run are
replayed in the environment, whose expert gives its own reflection at each state, and tells after each action whether it
was a mistake.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import fmean

from arms import ENVIRONMENTS, LEARNING, RUNS, publish_rows, table
from learning import ablated_runs

from reflectrl.config import load_recipe
from reflectrl.core.run_files import RECIPE
from reflectrl.report.judged import JudgedStep, audit_reflector
from reflectrl.report.runs import RunData, read_runs

HEADS = (
    *("environment", "steps", "taught %", "right, taught %", "right, new %"),
    *("good action %, right", "good action %, wrong", "success %, never wrong", "success %, once wrong or more"),
)
"""Columns of the published table."""


def judged(run: Path) -> list[list[JudgedStep]]:
    """Judge the sampled test episodes of a run's policy with its own reflector, episode by episode."""
    split = load_recipe(str(run / RECIPE)).eval.splits[0]
    (audit,) = (
        audit
        for audit in audit_reflector(run)
        if (audit.row.policy, audit.row.mode, audit.row.split) == ("rlft", "sampled", split)
    )
    return [list(steps) for steps in audit.episodes]


def share(values: Sequence[bool]) -> str:
    """Format the share of true values in per cent, and the number of values if there are few."""
    few = f" (of {len(values)})" if len(values) < 100 else ""
    return f"{100 * fmean(values):.0f}{few}" if values else "-"


def accuracy(env: str, episodes: Sequence[Sequence[JudgedStep]]) -> list[str]:
    """Return the row of how often the reflector is right, and how the policy does when it is right and when not."""
    steps = list(chain.from_iterable(episodes))
    taught, new = ([step for step in steps if step.taught is known] for known in (True, False))
    right, wrong = ([step.good for step in steps if step.standing_right is so] for so in (True, False))
    trusted, misled = (
        [each[0].success for each in episodes if all(step.standing_right for step in each) is so]
        for so in (True, False)
    )
    return [
        env,
        f"{len(steps):,}",
        share([step.taught for step in steps]),
        *(share([step.right for step in some]) for some in (taught, new)),
        *(share(some) for some in (right, wrong, trusted, misled)),
    ]


def report(runs: dict[str, list[RunData]]) -> list[list[str]]:
    """Return the row of each environment."""
    with ProcessPoolExecutor() as pool:
        return [
            accuracy(env, list(chain.from_iterable(pool.map(judged, [run.path for run in some]))))
            for env, some in runs.items()
        ]


def main() -> None:
    """Judge the finished runs, and publish the tables if all environments have them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="*", help=f"of {', '.join(ENVIRONMENTS)}; all by default")
    parser.add_argument("--seeds", help="such as 40-44 or 40,42; those of the published tables by default")
    parser.add_argument("--runs", type=Path, default=RUNS / "learning", help="folder of the run folders")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes with which they were made")
    given = parser.parse_args()
    folders = {env: ablated_runs(env, given.runs, given.seeds, given.set) for env in given.env or ENVIRONMENTS}
    runs = {env: read_runs(some) for env, some in folders.items() if some}
    rows = report(runs)
    print(table(HEADS, rows))
    if set(runs) == set(ENVIRONMENTS) and not given.seeds and not given.set:
        publish_rows(LEARNING, "reflections", rows, names=1)


if __name__ == "__main__":
    main()
