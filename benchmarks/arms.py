"""Common parts of the benchmarks: arms, which are recipes trained with several seeds, their results, and the tables."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.core.origin import commit_of, hardware
from reflectrl.pipeline.console import Reporter
from reflectrl.pipeline.folder import RunFolder
from reflectrl.pipeline.sweep import PlannedRun, run_all, unfinished
from reflectrl.report.series import mean_interval
from reflectrl.rollout.results import EvalRow, read_results

HERE = Path(__file__).parent
RUNS = HERE / "runs"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment of a run: with more threads, sums of nano models take longer and are rounded differently."""


@dataclass(frozen=True)
class Arm:
    """One line of a table before seeds: a recipe, and what differs from it."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()
    runs: Path = RUNS
    """Folder of the run folders."""

    def folder(self, seed: int) -> Path:
        """Folder of the arm's run with a seed."""
        return self.runs / f"{self.name}-seed{seed}"


def train_all(arms: Sequence[Arm], seeds: Sequence[int], jobs: int) -> None:
    """Run all arms and seeds, ``jobs`` at a time and one thread each; done runs are skipped, stopped ones continue."""
    planned = [
        PlannedRun(arm.folder(seed), arm.recipe, (*arm.overrides, f"seed={seed}"), ONE_THREAD)
        for seed in seeds
        for arm in arms
    ]
    run_all(unfinished(planned), jobs=jobs, reporter=Reporter())


def minutes(arm: Arm, seed: int) -> float:
    """Processor minutes of training a run, both stages, on one thread."""
    run = RunFolder(arm.folder(seed))
    return (run.cpu_seconds("sft") + run.cpu_seconds("rlft")) / 60


def iterations(arm: Arm, seed: int) -> int:
    """Iterations that RLFT took."""
    return len((arm.folder(seed) / "metrics.jsonl").read_text().splitlines())


def env_steps(arm: Arm, seed: int) -> int:
    """Environment steps that RLFT played."""
    last = (arm.folder(seed) / "metrics.jsonl").read_text().splitlines()[-1]
    return int(json.loads(last)["env_steps"])


def find(arm: Arm, seed: int, policy: str, reflections: str | None, mode: str, split: str = "test") -> EvalRow:
    """One row of a run's evaluation; ``reflections=None`` is the recipe's own."""
    rows = read_results(arm.folder(seed) / "eval.jsonl")
    controls = {"blank", "shuffled", "expert"}
    return next(
        row
        for row in rows
        if (row.policy, row.mode, row.split, row.group) == (policy, mode, split, "")
        and (row.reflections == reflections if reflections else row.reflections not in controls)
    )


def spread(values: Sequence[float]) -> str:
    """Mean and 95 % interval over seeds, in per cent."""
    mean, half = mean_interval(values)
    return f"{100 * mean:.0f}" if half is None else f"**{100 * mean:.0f}** ± {100 * half:.0f}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells below their heads, as Markdown."""
    head, *rest = (f"| {' | '.join(cells)} |" for cells in (heads, *lines))
    return "\n".join([head, f"|{'---|' * len(heads)}", *rest])


def objective(recipe: Recipe) -> str:
    """Describe the objective of RLFT of a recipe.

    Raises:
        InvalidInput: a recipe without RLFT.

    """
    rlft = recipe.rlft
    if rlft is None:
        raise InvalidInput(f"recipe {recipe.name!r} has no rlft section, so it has no objective to name.")
    method = "REINFORCE" if rlft.terms.ppo is None else f"PPO with clip range {rlft.terms.ppo.epsilon:g}"
    updates = rlft.num_iterations * rlft.num_minibatches
    terms = [
        method if updates == 1 else f"{method} and {updates} updates an iteration",
        _BASELINES[rlft.baseline],
        "no discount" if rlft.gamma == 1 else f"discount {rlft.gamma:g}",
        *(["advantages divided by their deviation"] if rlft.normalize_advantages else []),
        f"an entropy bonus of {rlft.terms.entropy.coef:g}" if rlft.terms.entropy else "no entropy bonus",
    ]
    smoothing = recipe.sft.policy.label_smoothing
    after = f" (after SFT with label smoothing {smoothing:g})" if smoothing else ""
    return f"{', '.join(terms)}{after}"


_BASELINES = {
    "none": "no baseline",
    "batch": "the batch's mean as the baseline",
    "leave_one_out": "the mean of the other episodes as the baseline",
    "value": "a value head as the baseline",
}


def objectives(recipe: Recipe) -> str:
    """Sentence of a table on the objective of its rows, which is that of ``recipe``, and on the paper's."""
    paper = load_recipe("dangerous_taxi/nano_paper_objective")
    return textwrap.fill(
        f"Objective of all rows with RLFT, unless they name another: {objective(recipe)}. "
        f"The paper's objective: {objective(paper)}.",
        width=120,
    )


def made_by(command: str, machine: str | None = None) -> str:
    """Line with the date, commit, command and machine of measured numbers."""
    return f"Made on {date.today()} at commit {commit()} by `{command}`\non {machine or hardware()}"


@cache
def commit() -> str:
    """Commit that is checked out, as it was before a table was published; ``REFLECTRL_COMMIT`` says it without git."""
    return os.environ.get("REFLECTRL_COMMIT") or commit_of(HERE)


def publish(readme: Path, mark: str, text: str) -> None:
    """Put ``text`` between ``<!-- mark -->`` and the next ``<!-- end -->`` of ``readme``.

    Raises:
        InvalidInput: ``readme`` lacks the marks.

    """
    before, begin, rest = readme.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        raise InvalidInput(f"{readme} has no lines '<!-- {mark} -->' and '<!-- end -->'; write them where tables go.")
    readme.write_text(f"{before}{begin}{text}{end}{after}", encoding="utf-8")
