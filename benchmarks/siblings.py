"""Measure the parts of RL4VLM, GTR, RAP and V-TIFA, and what a pretrained model learns, over seeds.

    python benchmarks/siblings.py thoughts_number_line                 # trains missing runs, and publishes the table
    python benchmarks/siblings.py memory_alfworld --seeds 40-41        # fewer seeds: the table on stdout only
    timeout 20m python benchmarks/siblings.py thoughts_points24        # for 20 minutes: repeat it to continue

Each arm is a shipped recipe, trained with five seeds (a pretrained model: three) on one thread. ``raters_endpoint``
starts its scripted chat model itself; ``raters_line`` needs a trained rater, see ``results/siblings.md``. Runs that
``benchmarks/records/`` holds are not trained again: ``--record`` adds the finished ones, without weights and episodes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from arms import HERE, LEARNING, RUNS, SIBLINGS, made_by, plan, publish_rows, table
from learning import SHOWN, Column, commits, machines, minutes, reached, runs_of, sitting
from scripted_rater import ScriptedRater
from studies import GPU_STUDIES, STUDIES

from reflectrl.config import load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.run_files import LEDGER, METRICS, RECIPE, RESULTS, STAGES, THROUGHPUT, TRIALS
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.sweep import PlannedRun
from reflectrl.report.compare import Rows
from reflectrl.report.runs import RunData, read_runs
from reflectrl.report.series import mean_interval

RECORDS = HERE / "records"
"""Folder of a study's recorded runs, for studies that take longer than one sitting."""
RECORDED = (RECIPE, LEDGER, METRICS, THROUGHPUT, RESULTS, TRIALS)
"""Files of a run that its table is made from."""
WINDOW = 5
"""Number of first and of last iterations of a training over which thoughts are measured."""
FIRST, LAST = slice(WINDOW), slice(-WINDOW, None)


def _over(part: slice, name: str, form: str = ".0%", *, each: bool = False) -> Column:
    """Return a column with the mean of a metric in a part of the iterations, over all runs or of ``each`` run."""

    def mean(runs: Sequence[RunData]) -> str:
        values = [getattr(point, name) for run in runs for point in run.points[part]]
        known = [value for value in values if value is not None]
        return format(fmean(known), form) if known else "-"

    def of_each(runs: Sequence[RunData]) -> str:
        return " ".join(mean([run]) for run in runs)

    return of_each if each else mean


def _trial(number: int, *, memory: bool, solved: bool = False) -> Column:
    """Return a column of the trained policy's success in one trial, or of the tasks ``solved`` up to that trial."""

    def cell(runs: Sequence[RunData]) -> str:
        wanted = (number, "rlft", memory, "")
        rows = [row for run in runs for row in run.trials if (row.trial, row.policy, row.memory, row.group) == wanted]
        return _per_cent([row.solved if solved else row.metrics.success for row in rows])

    return cell


def _sampled(policy: str, reflections: str | None = None, split: str = "") -> Column:
    """Return a column of a policy's success in sampled episodes, with its recipe's own reflections or given ones.

    Without ``split``, it is the first that the runs evaluated.
    """
    return lambda runs: _per_cent(Rows(policy, split or runs[0].rows[0].split, "sampled", reflections).successes(runs))


def _on_all(runs: Sequence[RunData]) -> str:
    """Return the success after RLFT over the tasks of all evaluated splits, each split weighted by its tasks."""
    found = []
    for run in runs:
        rows = [row for row in run.own_rows if (row.policy, row.mode) == ("rlft", "sampled")]
        found.append(sum(row.tasks * row.metrics.success for row in rows) / sum(row.tasks for row in rows))
    return _per_cent(found, 1)


def _per_cent(values: Sequence[float], decimals: int = 0) -> str:
    """Format the mean of the runs and, if there are several, its 95 % t interval."""
    if not values:
        return "-"
    mean, half = (None if number is None else f"{100 * number:.{decimals}f}" for number in mean_interval(values))
    return f"{mean}" if half is None else f"{mean} ± {half}"


COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "pretrained": {
        "before training": _sampled("zero_shot"),
        "blank": _sampled("rlft", "blank"),
        "of other states": _sampled("rlft", "shuffled"),
    },
    "thoughts": {
        "misread": _over(LAST, "thought_misread"),
        "of each seed": _over(LAST, "thought_misread", each=True),
        "illegal, first": _over(FIRST, "illegal"),
        "illegal": _over(LAST, "illegal"),
        "tokens per step": _over(LAST, "thought_tokens", ".1f"),
    },
    "memory": {
        "trial 1": _trial(1, memory=True),
        "2": _trial(2, memory=True),
        "3": _trial(3, memory=True),
        "solved": _trial(3, memory=True, solved=True),
        "3 without": _trial(3, memory=False),
        "solved without": _trial(3, memory=False, solved=True),
    },
}
"""Additional columns of each kind of study."""


def record_of(run: PlannedRun, records: Path = RECORDS) -> Path | None:
    """Return the folder that holds the record of a finished run, if there is one.

    Raises:
        InvalidInput: the recorded run had another recipe.

    """
    folder = records / run.folder.parent.name / run.folder.name
    if not folder.is_dir():
        return None
    recipe = load_recipe(run.recipe, run.overrides)
    for stage in STAGES:
        RunFolder(folder).check(recipe, stage)
    return folder


def record(folder: Path, records: Path = RECORDS) -> None:
    """Copy the files of a finished run that its table is made from."""
    target = records / folder.parent.name / folder.name
    target.mkdir(parents=True, exist_ok=True)
    for name in RECORDED:
        if folder != target and (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)


@dataclass(frozen=True)
class Table:
    """Rows of a study in a published table."""

    page: Path
    mark: str
    heads: tuple[str, ...]
    rows: list[list[str]]
    names: int = 2
    """Number of first cells that name a row."""

    def __str__(self) -> str:
        return table(self.heads, self.rows)

    def publish(self) -> None:
        """Write the rows into the table of the page."""
        publish_rows(self.page, self.mark, self.rows, self.names)


def results(name: str, runs: Sequence[RunData], machine: str = "CPU") -> list[Table]:
    """Return the tables of a study's finished runs; ``machine`` names where a pretrained model was trained."""
    study, kind = STUDIES.get(name) or GPU_STUDIES[name], name.partition("_")[0]
    section = load_recipe(study.arms[0].recipe).eval
    split, *others = section.splits
    columns = COLUMNS.get(kind, {})
    trained = [(arm.title, own) for arm in study.arms if (own := runs_of(arm, runs))]
    own = {title: {head: column(some) for head, column in columns.items()} for title, some in trained}
    if kind == "pretrained":
        task = name.removeprefix("pretrained_")
        rows = [
            [task, title, machine, *reached(split, some), *own[title].values(), minutes(some)]
            for title, some in trained
        ]
        return [Table(LEARNING, kind, ("task", "trained", "on", *SHOWN, *columns, "minutes"), rows, names=3)]

    def elsewhere(some: Sequence[RunData]) -> str:
        if "test" in others:
            return f"on test {_sampled('rlft', split='test')(some)}"
        return f"on all {_on_all(some)}" if others else ""

    rows = [[name, title, *reached(split, some), elsewhere(some)] for title, some in trained]
    found = [Table(SIBLINGS, "siblings", ("study", "trained", *SHOWN, "elsewhere"), rows)]
    if columns:
        written = [
            [name, title, *cells.values()] for title, cells in own.items() if cells.get("tokens per step") != "-"
        ]
        found.append(Table(SIBLINGS, kind, ("study", "trained", *columns), written))
    return found


def main() -> int:
    """Train the missing runs, then print the table of the finished ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=[*STUDIES], metavar="STUDY", help=f"one of {', '.join(STUDIES)}")
    parser.add_argument("--arms", help="names of some arms, with commas; all by default")
    parser.add_argument("--seeds", help="such as 40-44 or 40,42; those of the published tables by default")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=RUNS / "siblings", help="folder of the run folders")
    parser.add_argument("--record", action="store_true", help="keep and publish what is finished, see records/")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="changes to the recipes, for a quick look")
    given = parser.parse_intermixed_args()
    study, quick = STUDIES[given.study], given.arms or given.seeds or given.overrides
    known = [arm.name for arm in study.arms]
    wanted = given.arms.split(",") if given.arms else known
    if unknown := [name for name in wanted if name not in known]:
        parser.error(f"{given.study} has no arm {unknown[0]!r}; it has {', '.join(known)}")
    arms = [arm for arm in study.arms if arm.name in wanted]
    try:
        server = ScriptedRater() if given.study == "raters_endpoint" else nullcontext()
    except InvalidInput as error:
        parser.error(f"{error}")
    with server:
        done, whole, code = sitting(
            lambda: plan(given.study, arms, given.seeds, given.runs, given.overrides), given.jobs, record_of
        )
    if not done:
        return code
    for folder in done if given.record else ():
        record(folder)
    options = {"--arms": given.arms, "--seeds": given.seeds}
    asked = [*(word for option, value in options.items() if value for word in (option, value)), *given.overrides]
    runs = read_runs(done)
    command = " ".join(["python benchmarks/siblings.py", given.study, *asked])
    print(f"{made_by(command, machines(runs), commits(runs))}{'' if whole else '. Not all runs are finished'}")
    for each in results(given.study, runs):
        print(f"\n{each}")
        if not quick and (whole or given.record):
            each.publish()
    return code


if __name__ == "__main__":
    sys.exit(main())
