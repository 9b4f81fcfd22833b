"""Measure what reflections are worth in each nano environment, and how right the reflector is, from finished runs.

    python benchmarks/reflections.py          # after learning.py ENV --ablations for all environments
    python benchmarks/reflections.py taxi     # one of them, on stdout only

Nothing is trained: the runs with reflection are those that the ablations are compared with, and the success without
reflection is taken from the published tables. The sampled test episodes of each run are replayed in the environment,
whose expert gives its own reflection at each state, and tells after each action whether it was a mistake.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path
from statistics import fmean

from arms import ENVIRONMENTS, HERE, RUNS, made_by, publish, spread, table
from learning import SILENT, ablated_runs, commits, published, rows_of

from reflectrl.config import load_recipe
from reflectrl.core.layout import RECIPE
from reflectrl.report.reflector import Step, audit_reflector
from reflectrl.report.runs import Run, read_runs


def judged(run: Path) -> list[list[Step]]:
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


def worth(env: str, runs: Sequence[Run]) -> list[str]:
    """Return the row of mean success rates with the reflector, without one, and with other reflections."""
    split = load_recipe(ENVIRONMENTS[env].recipe).eval.splits[0]

    def success(reflections: str) -> str:
        rows = rows_of(runs, "rlft", reflections, "sampled", split)
        return spread([row.metrics.success for row in rows]) if rows else "-"

    others = (success(reflections) for reflections in ("blank", "shuffled", "expert"))
    return [ENVIRONMENTS[env].title, ENVIRONMENTS[env].hidden, success("own"), published(env, SILENT), *others]


def accuracy(env: str, episodes: Sequence[Sequence[Step]]) -> list[str]:
    """Return the row of how often the reflector is right, and how the policy does when it is right and when not."""
    steps = list(chain.from_iterable(episodes))
    taught, new = ([step for step in steps if step.taught is known] for known in (True, False))
    right, wrong = ([step.good for step in steps if step.standing_right is so] for so in (True, False))
    trusted, misled = (
        [each[0].success for each in episodes if all(step.standing_right for step in each) is so]
        for so in (True, False)
    )
    return [
        ENVIRONMENTS[env].title,
        f"{len(steps):,}",
        share([step.taught for step in steps]),
        *(share([step.right for step in some]) for some in (taught, new)),
        *(share([step.standing_right for step in some]) for some in (taught, new)),
        *(share(some) for some in (right, wrong, trusted, misled)),
    ]


def report(runs: dict[str, list[Run]], command: str) -> str:
    """Return both tables for the runs of each environment."""
    with ProcessPoolExecutor() as pool:
        found = {
            env: list(chain.from_iterable(pool.map(judged, [run.path for run in some]))) for env, some in runs.items()
        }
    heads = ("", "hidden from the text", "**Reflect-RL**", "trained without", "blank", "of other states", "expert's")
    right = ("", "steps", "taught %", "right, taught %", "right, new %", "standing right, taught %")
    right += ("standing right, new %", "good action %, right", "good action %, wrong")
    right += ("success %, never wrong", "success %, once wrong or more")
    return f"""{made_by(command, commits=commits([run for some in runs.values() for run in some]))}.
Sampled test episodes of the runs that the ablations are compared with. First: success in per cent, mean with a 95 % t
interval over runs, of the policy that reads the reflector's words, of one trained without a reflector (from the table
of its environment above), and of the first with other words in their place.

{table(heads, [worth(env, some) for env, some in runs.items()])}

The reflector, step by step, in the policy's own episodes, all runs together. Taught: its prompt is one of the SFT rows.
Right: it says what the expert would have said, but for case and spaces; standing: the same without the judgement of the
last action. A good action is no mistake by the environment's own judgement; it is counted where the standing was right
and where it was wrong, as is the success of episodes.

{table(right, [accuracy(env, some) for env, some in found.items()])}
"""


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
    text = report(runs, "python benchmarks/reflections.py")
    print(text)
    if set(runs) == set(ENVIRONMENTS) and not given.seeds and not given.set:
        publish(HERE / "README.md", "reflections", text)


if __name__ == "__main__":
    main()
