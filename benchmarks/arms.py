"""Common parts of the benchmarks: the arms, which are recipes trained with several seeds, and the published tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

from reflectrl.core import InvalidInput
from reflectrl.core.origin import commit_of, hardware
from reflectrl.pipeline.sweep import PlannedRun, plan_runs, read_seeds
from reflectrl.report.series import mean_interval

HERE = Path(__file__).parent
RUNS = HERE / "runs"
LEARNING, SIBLINGS, ENGINE = (HERE / "results" / f"{name}.md" for name in ("learning", "siblings", "engine"))
"""Pages of the published tables."""
RELIABILITY = HERE.parent / "docs" / "reliability.md"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment variables of a run: with more threads, nano models' sums take longer and are rounded differently."""
SEEDS = "80-84"
"""Seeds of the published tables; no setting was chosen with them."""
LATER_SEEDS = "90-94"
"""Seeds of the published tables of environments whose settings were changed after other seeds had been tested."""
ROUNDINGS: Mapping[str, Mapping[str, str]] = {
    "default": {"ATEN_CPU_CAPABILITY": "default"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
}
"""Environment variables that select each instruction set."""
NATIVE = "native"
"""Name of the instruction set that torch selects itself, used for models that would take hours with another."""


@dataclass(frozen=True)
class Arm:
    """A recipe that is trained with several seeds."""

    name: str
    """Prefix of the names of its run folders."""
    title: str
    recipe: str
    overrides: tuple[str, ...] = ()
    seeds: str = SEEDS
    """Seeds of its runs in the published tables."""
    roundings: tuple[str, ...] = ("default",)
    """Instruction sets with which each seed is trained: keys of ``ROUNDINGS``, or ``NATIVE``."""


@dataclass(frozen=True)
class Environment:
    """An environment of the benchmarks, with the recipes that are trained in it."""

    title: str
    recipe: str
    """Nano recipe with reflection, trained by the arm ``reflecting``."""
    silent_recipe: str | None = None
    """Nano recipe without reflection; by default ``recipe`` with the reflector switched off."""
    seeds: str = SEEDS
    ablations: tuple[Arm, ...] = ()

    @property
    def silent(self) -> Arm:
        """The arm without reflection."""
        overrides = () if self.silent_recipe else ("players.reflector.player=none", "eval.controls=[]")
        recipe = self.silent_recipe or self.recipe
        return Arm("silent", "without reflection", recipe, overrides, self.seeds, tuple(ROUNDINGS))

    @property
    def reflecting(self) -> Arm:
        """The arm with reflection."""
        overrides = ("eval.controls=[blank,shuffled,expert]",)
        return Arm("reflecting", "**Reflect-RL**", self.recipe, overrides, self.seeds, tuple(ROUNDINGS))

    @property
    def ablated(self) -> Arm:
        """The arm with reflection, on the seeds of the ablations that are compared with it."""
        seeds = self.ablations[0].seeds
        return replace(self.reflecting, title=f"Reflect-RL, seeds {seeds}", seeds=seeds)


def _menu(place: str, recipe: str) -> Arm:
    return Arm(f"menu_{place}", f"menu {place}", recipe, (f"prompt.menu={place}",), roundings=tuple(ROUNDINGS))


ENVIRONMENTS: Mapping[str, Environment] = {
    "safe": Environment(
        "Safe, three additions",
        "safe/nano",
        "safe/nano_no_reflection",
        "80-89",
        (Arm("all_rows", "without reflection, from all rows", "safe/nano_no_reflection_all_rows"),),
    ),
    "taxi": Environment(
        "Taxi, pickup",
        "dangerous_taxi/nano",
        "dangerous_taxi/nano_no_reflection",
        "80-89",
        (
            Arm("rlft_only", "RLFT only (no SFT, no reflection)", "dangerous_taxi/nano_rlft_only"),
            Arm("no_negatives", "without negatives", "dangerous_taxi/nano_no_negatives"),
            Arm("paper_objective", "the paper's objective", "dangerous_taxi/nano_paper_objective"),
            _menu("first", "dangerous_taxi/nano"),
        ),
    ),
    "ride": Environment(
        "Taxi, the whole ride",
        "dangerous_taxi/nano_full",
        seeds=LATER_SEEDS,
        ablations=(Arm("curriculum", "pickup first", "dangerous_taxi/nano_full_curriculum", seeds=LATER_SEEDS),),
    ),
    "line": Environment(
        "Number line",
        "number_line/nano",
        ablations=(_menu("first", "number_line/nano"),),
    ),
    "explore": Environment(
        "AutoExplore, the company's files",
        "auto_explore/nano",
        "auto_explore/nano_no_reflection",
        LATER_SEEDS,
        (Arm("no_negatives", "without negatives", "auto_explore/nano_no_negatives", seeds=LATER_SEEDS),),
    ),
    "alfworld": Environment(
        "ALFWorld, the tomato task",
        "alfworld/nano",
        "alfworld/nano_no_reflection",
        ablations=(
            Arm("no_negatives", "without negatives", "alfworld/nano_no_negatives"),
            _menu("last", "alfworld/nano"),
        ),
    ),
}


def plan(
    env: str,
    arms: Sequence[Arm],
    seeds: str | None = None,
    runs: Path = RUNS / "learning",
    overrides: Sequence[str] = (),
) -> list[PlannedRun]:
    """Return the planned runs of some arms of an environment, in the order of their seeds.

    Args:
        env: a key of ``ENVIRONMENTS``, or of ``STUDIES`` in ``studies.py``.
        arms: the arms to train.
        seeds: such as ``40-44``; by default those of each arm.
        runs: folder that holds one folder per environment or study.
        overrides: changes to the recipes.

    Raises:
        InvalidInput: ``seeds`` is not a list of seeds.

    """
    planned = [
        run
        for arm in arms
        for rounding in arm.roundings
        for run in plan_runs(
            runs / env,
            f"{arm.name}-{rounding}",
            arm.recipe,
            read_seeds(seeds or arm.seeds),
            overrides=(*arm.overrides, *overrides),
            environment={**ONE_THREAD, **({} if rounding == NATIVE else ROUNDINGS[rounding])},
        )
    ]
    return sorted(planned, key=lambda run: int(run.folder.name.rpartition("seed")[2]))


def spread(values: Sequence[float]) -> str:
    """Format the mean and the 95 % interval over seeds, in per cent."""
    mean, half = mean_interval(values)
    return f"{100 * mean:.0f}" if half is None else f"**{100 * mean:.0f}** ± {100 * half:.0f}"


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Format rows of cells below their heads as a Markdown table."""
    head, *rest = (f"| {' | '.join(cells)} |" for cells in (heads, *lines))
    return "\n".join([head, f"|{'---|' * len(heads)}", *rest])


def made_by(command: str, machine: str | None = None, commits: Sequence[str] = ()) -> str:
    """Describe how numbers were measured: date, commits (by default the one checked out), command and machine."""
    made_at = ", ".join(f"commit {each}" for each in dict.fromkeys(commits or [commit()]))
    return f"Made on {date.today()} at {made_at} by `{command}`\non {machine or hardware()}"


def loaded_machine() -> str:
    """Describe this machine and its load, for times that other processes affect."""
    return f"{hardware()} (load {os.getloadavg()[0]:.1f})"


@cache
def commit() -> str:
    """Return the commit that is checked out; ``REFLECTRL_COMMIT`` overrides it where there is no git."""
    return os.environ.get("REFLECTRL_COMMIT") or commit_of(HERE)


def content(page: Path, mark: str) -> str:
    """Return the text between ``<!-- mark -->`` and the next ``<!-- end -->`` of ``page``.

    Raises:
        InvalidInput: ``page`` lacks the marks.

    """
    return _parts(page, mark)[1]


def publish(page: Path, mark: str, text: str) -> None:
    """Write ``text`` between ``<!-- mark -->`` and the next ``<!-- end -->`` of ``page``.

    Raises:
        InvalidInput: ``page`` lacks the marks.

    """
    before, _, after = _parts(page, mark)
    page.write_text(f"{before}{text}{after}", encoding="utf-8")


def publish_rows(page: Path, mark: str, rows: Sequence[Sequence[str]], names: int = 2) -> None:
    """Write rows into the table at ``mark`` of ``page``, in place of those with the same first ``names`` cells.

    Raises:
        InvalidInput: ``page`` lacks the marks.

    """
    head, rule, *old = content(page, mark).splitlines()
    new = table((), rows).splitlines()[2:]
    lines = {tuple(line.split(" | ")[:names]): line for line in (*old, *new)}
    publish(page, mark, "\n".join([head, rule, *lines.values(), ""]))


def published_rows(page: Path, mark: str) -> list[dict[str, str]]:
    """Return the rows of the table at ``mark`` of ``page`` as cells by their heads."""
    lines = [line for line in content(page, mark).splitlines() if line.startswith("| ")]
    heads, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def _parts(page: Path, mark: str) -> tuple[str, str, str]:
    """Split a page into the text up to the end of a mark's line, the text up to the next end mark, and the rest."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")
    text, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        raise InvalidInput(f"{page} has no lines '<!-- {mark} -->' and '<!-- end -->'; write them where tables go.")
    return before + begin, text, end + after
