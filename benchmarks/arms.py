"""Common parts of the benchmarks: arms, which are recipes trained with several seeds, their results, and the tables."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from reflectrl.config import Recipe, load_recipe
from reflectrl.core import InvalidInput
from reflectrl.pipeline.folder import RunFolder
from reflectrl.report.series import t95
from reflectrl.rollout.results import EvalRow, read_results

HERE = Path(__file__).parent
RUNS = HERE / "runs"


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


def train(arm: Arm, seed: int) -> None:
    """Run one arm with one seed, unless it is done; its output goes to a log beside the runs."""
    if (arm.folder(seed) / "eval.jsonl").is_file():
        return
    command = [sys.executable, "-m", "reflectrl", "run", "--recipe", arm.recipe, "--runs", str(arm.runs)]
    command += ["--run", arm.folder(seed).name, f"seed={seed}", *arm.overrides]
    arm.runs.mkdir(exist_ok=True)
    with (arm.runs / f"{arm.folder(seed).name}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
    print(f"{arm.name} seed {seed}: done", file=sys.stderr)


def train_all(arms: Sequence[Arm], seeds: Sequence[int], jobs: int) -> None:
    """Run all arms and seeds, ``jobs`` at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(lambda pair: train(*pair), [(arm, seed) for seed in seeds for arm in arms]))


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
    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{100 * mean:.0f}"
    half = t95(len(values)) * statistics.stdev(values) / len(values) ** 0.5
    return f"**{100 * mean:.0f}** ± {100 * half:.0f}"


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


def made_by(command: str, machine: str = f"{os.cpu_count()} cores\n({platform.machine()})") -> str:
    """Line with the date, commit, command and machine of measured numbers."""
    return f"Made on {date.today()} at commit {commit()} by `{command}` on {machine}"


def commit() -> str:
    """Short hash of the commit that is checked out; ``-dirty`` behind it where files differ from it.

    ``REFLECTRL_COMMIT`` says it where the files were copied without git.
    """
    if given := os.environ.get("REFLECTRL_COMMIT"):
        return given
    described = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(described, cwd=HERE, check=True, capture_output=True, text=True).stdout.strip()


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
