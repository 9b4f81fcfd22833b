"""Common parts of the benchmarks: the arms, which are recipes trained with several seeds, and the published tables."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from pathlib import Path

from reflectrl.config import Recipe, load_recipe
from reflectrl.config.advantage import GAE
from reflectrl.config.rlft import PPO, EntropyBonus, EntropyTarget
from reflectrl.core import InvalidInput
from reflectrl.core.origin import commit_of, hardware
from reflectrl.pipeline.sweep import PlannedRun, plan_runs, read_seeds
from reflectrl.report.series import mean_interval

HERE = Path(__file__).parent
RUNS = HERE / "runs"
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
    hidden: str
    """Short description of what the text of a state does not show."""
    played: str
    """Sentence for the tables on how the test tasks differ from the training tasks."""
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
        return replace(self.reflecting, seeds=self.ablations[0].seeds)


def _menu(place: str, recipe: str) -> Arm:
    return Arm(f"menu_{place}", f"menu {place}", recipe, (f"prompt.menu={place}",), roundings=tuple(ROUNDINGS))


ENVIRONMENTS: Mapping[str, Environment] = {
    "taxi": Environment(
        "Taxi, pickup",
        "dangerous_taxi/nano",
        "nothing",
        "No SFT row shows a start of the test and no training episode begins there, but some pass through; training "
        "visits no state of unseen_destination.",
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
        "nothing",
        "No SFT row shows a start of the test and no training episode begins there, but some pass through.",
        seeds=LATER_SEEDS,
        ablations=(Arm("curriculum", "pickup first", "dangerous_taxi/nano_full_curriculum", seeds=LATER_SEEDS),),
    ),
    "line": Environment(
        "Number line",
        "number_line/nano",
        "nothing",
        "Lines of ten numbers; training begins at none of the starts of the test, but passes through some.",
        ablations=(_menu("first", "number_line/nano"),),
    ),
    "explore": Environment(
        "AutoExplore, the company's files",
        "auto_explore/nano",
        "where the file lies",
        "Each seed splits the files anew, and no file of a test question is asked about in training.",
        "auto_explore/nano_no_reflection",
        LATER_SEEDS,
        (Arm("no_negatives", "without negatives", "auto_explore/nano_no_negatives", seeds=LATER_SEEDS),),
    ),
    "alfworld": Environment(
        "ALFWorld, the tomato task",
        "alfworld/nano",
        "what closed or far places hold",
        "No game of the test is in training, but its four kitchens are.",
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


def objective(recipe: Recipe) -> str:
    """Describe the RLFT objective of a recipe.

    Raises:
        InvalidInput: the recipe has no RLFT.

    """
    rlft = recipe.rlft
    if rlft is None:
        raise InvalidInput(f"recipe {recipe.name!r} has no rlft section, so it has no objective to name.")
    update, advantage, updates = rlft.update, rlft.advantage, rlft.updates_per_iteration
    method = f"PPO with clip range {update.epsilon:g}" if isinstance(update, PPO) else "REINFORCE"
    gae_lambda = advantage.gae_lambda if isinstance(advantage, GAE) else 1
    terms = [
        method if updates == 1 else f"{method} and {updates} updates an iteration",
        *([f"no update beyond a KL divergence of {update.target_kl:g}"] if update.target_kl else []),
        _BASELINES[advantage.kind],
        *([f"GAE with lambda {gae_lambda:g}"] if gae_lambda < 1 else []),
        "no discount" if rlft.gamma == 1 else f"discount {rlft.gamma:g}",
        *(["advantages centred"] if advantage.center else []),
        *(["advantages divided by their deviation"] if advantage.normalize else []),
        _entropy(rlft.terms.entropy),
        *([f"{rlft.replay.episodes} replayed successes beside {rlft.episodes} new episodes"] if rlft.replay else []),
    ]
    smoothing = recipe.sft.policy.label_smoothing
    after = f" (after SFT with label smoothing {smoothing:g})" if smoothing else ""
    return f"{', '.join(terms)}{after}"


def _entropy(term: EntropyBonus | EntropyTarget | None) -> str:
    """Describe the entropy bonus of an objective."""
    if term is None:
        return "no entropy bonus"
    return f"an entropy bonus of {term.coef:g}{f' below {term.floor:g} nats' if term.floor else ''}"


_BASELINES = {
    "none": "no baseline",
    "batch": "the batch's mean as the baseline",
    "leave_one_out": "the mean of the other episodes as the baseline",
    "step_group": "the means of the task's episodes and of equal states as the baseline",
    "gae": "a value head as the baseline",
}


def objectives(recipe: Recipe) -> str:
    """Describe the objective of ``recipe``, which is that of a table's rows, and the paper's."""
    paper = load_recipe("dangerous_taxi/nano_paper_objective")
    return textwrap.fill(
        f"Objective of all rows with RLFT, unless they name another: {objective(recipe)}. "
        f"The paper's objective: {objective(paper)}.",
        width=120,
    )


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


def _parts(page: Path, mark: str) -> tuple[str, str, str]:
    """Split a page into the text up to the end of a mark's line, the text up to the next end mark, and the rest."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")
    text, end, after = rest.partition("<!-- end -->")
    if not begin or not end:
        raise InvalidInput(f"{page} has no lines '<!-- {mark} -->' and '<!-- end -->'; write them where tables go.")
    return before + begin, text, end + after
