"""Tables in the terminal: every evaluated policy of every run, trials, and the profile of an iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from statistics import fmean

from rich import box
from rich.console import Console
from rich.table import Table

from reflectrl.core.profile import Profile, Timed
from reflectrl.core.text import counted, visible
from reflectrl.report.runs import RunData
from reflectrl.rollout.results import EvalRow, TrialRow, begin_alike

TRIAL_WORDS = ("run", "policy", "memory", "split", "trial", "tasks")
TRIAL_HEADS = (*TRIAL_WORDS, "episodes", "past episodes", "success [95 %]", "solved so far [95 %]", "steps")
TRIAL_NOTE = (
    "Success: of this trial alone. Solved so far: tasks that this trial or an earlier one solved, the paper's number. "
    "Without a memory, it says what trying again is worth alone."
)


def trial_cells(runs: Sequence[RunData]) -> list[tuple[str, ...]]:
    """Return a row of ``TRIAL_HEADS`` for each trial of ``runs``, in order."""
    return [(run.name, *_cells(row)) for run in runs for row in run.trials]


def _cells(row: TrialRow) -> tuple[str, ...]:
    metrics = row.metrics
    return (
        row.policy,
        "with" if row.memory else "without",
        row.split,
        str(row.trial),
        row.group or "all",
        str(metrics.episodes),
        f"{row.remembered:,}",
        with_interval(metrics.success, metrics.success_low, metrics.success_high),
        with_interval(row.solved, row.solved_low, row.solved_high),
        f"{metrics.length:.1f}",
    )


def with_interval(rate: float, low: float, high: float) -> str:
    """Return a rate with its interval, in percent: ``50% [40, 60]``."""
    return f"{rate:.0%} [{100 * low:.0f}, {100 * high:.0f}]"


SUCCESS = "success [95 %]"
OUTDATED = "the rows are of an earlier evaluation; the last one is not finished: run `reflectrl eval` to continue it"
FIRST_NUMBER = "episodes"
"""The columns from here on hold numbers; those before hold words."""
_CELLS: Mapping[str, Callable[[EvalRow], str]] = {
    "policy": lambda row: row.policy,
    "reflections by": lambda row: row.reflections,
    "mode": lambda row: row.mode,
    "split": lambda row: row.split,
    "tasks": lambda row: row.group or ", ".join(row.chosen) or "all",
    FIRST_NUMBER: lambda row: str(row.metrics.episodes),
    SUCCESS: lambda row: with_interval(row.metrics.success, row.metrics.success_low, row.metrics.success_high),
    "return": lambda row: f"{row.metrics.episode_return:+.2f}",
    "steps": lambda row: f"{row.metrics.length:.1f}",
    "illegal": lambda row: f"{row.metrics.illegal:.1%}",
}
"""Text of each column but the first."""

UNTRAINED = {"random": -1, "expert": 1}
"""Policies that no run trains, with their position: before or after all others."""


def table_rows(runs: Sequence[RunData]) -> list[tuple[str, EvalRow]]:
    """Return the name of the run and the row, for all rows of all runs in order.

    The random policy and the expert appear once for all runs that agree on them to the last digit, as runs of one
    environment and seed do.
    """
    owners: dict[tuple[str, EvalRow], list[str]] = {}
    for run in runs:
        for row in run.rows:
            owners.setdefault(("" if row.policy in UNTRAINED else run.name, row), []).append(run.name)
    named = [
        ("all runs" if len(names) == len(runs) > 1 else ", ".join(names), row) for (_, row), names in owners.items()
    ]
    return sorted(named, key=lambda pair: UNTRAINED.get(pair[1].policy, 0))


def played_on(runs: Sequence[RunData]) -> list[str]:
    """Return descriptions of the tasks, each once, with its split, and the names of the runs unless all share it."""
    named: dict[str, list[str]] = {}
    for run in runs:
        for tasks in dict.fromkeys(f"{row.benchmark}, split {row.split}" for row in run.rows if row.benchmark):
            named.setdefault(tasks, []).append(run.name)
    return [tasks if len(names) == len(runs) else f"{', '.join(names)}: {tasks}" for tasks, names in named.items()]


def warnings_on(rows: Sequence[EvalRow]) -> list[str]:
    """Return a sentence for each split with tasks that begin like training tasks."""
    return [
        f"Split {split}: {alike}, so they are no new states, unless what differs is hidden at first."
        for split, alike in begin_alike(rows).items()
    ]


def columns(rows: Sequence[EvalRow]) -> tuple[str, ...]:
    """Return the heads of a table of ``rows``, with columns for split and tasks if they are not test and all."""
    left_out = set()
    if {row.split for row in rows} == {"test"}:
        left_out.add("split")
    if not any(row.group or row.chosen for row in rows):
        left_out.add("tasks")
    return ("run", *(name for name in _CELLS if name not in left_out))


def cells(run: str, row: EvalRow, heads: Sequence[str]) -> tuple[str, ...]:
    """Return a row's words and numbers, one for each of ``heads``, the first of which is for the run."""
    return (run, *(_CELLS[head](row) for head in heads[1:]))


def print_table(runs: Sequence[RunData]) -> None:
    """Print the results of ``runs``."""
    rows = table_rows(runs)
    heads = columns([row for _, row in rows])
    if rows:
        shown = [cells(run, row, heads) for run, row in rows]
        print_rows(heads, shown, words=heads.index(FIRST_NUMBER), bold=[row.policy == "rlft" for _, row in rows])
    for tasks in played_on(runs):
        print_line(f"Played on {tasks}.")
    for warning in warnings_on([row for _, row in rows]):
        print_line(warning)
    if trials := trial_cells(runs):
        print_line("")
        print_rows(TRIAL_HEADS, trials, words=len(TRIAL_WORDS))
        print_line(TRIAL_NOTE)
    for each in runs:
        if not each.rows:
            print_line(f"{each.name}: not evaluated yet; run `reflectrl eval` for it.")
        if each.outdated_rows:
            print_line(f"{each.name}: {OUTDATED}.")


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells below their heads as a table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    escaped = ([" ".join(cell.split()).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, bold: Sequence[bool] = ()) -> None:
    """Print a table whose first ``words`` columns hold words: drawn on a terminal, plain columns elsewhere.

    Equal cells one under the other in the first column are drawn once.
    """
    console = plain_console()
    console.print(rows_table(heads, rows, words=words, bold=bold, drawn=console.is_terminal))


def rows_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, words: int, bold: Sequence[bool] = (), drawn: bool
) -> Table:
    """Return the table of ``print_rows``; ``drawn`` says whether with lines, as on a terminal."""
    table = Table(box=box.SIMPLE_HEAD if drawn else None, padding=(0, 0 if drawn else 1), pad_edge=False)
    for number, name in enumerate(heads):
        head = name.replace(" ", "\n", 1) if drawn else name
        table.add_column(head, justify="left" if number < words else "right", no_wrap=number > 0, overflow="fold")
    above = None
    for row, strong in zip_longest(rows, bold[: len(rows)]):
        first = "" if drawn and row[0] == above else row[0]
        table.add_row(*map(visible, (first, *row[1:])), style="bold" if strong else None)
        above = row[0]
    return table


def print_line(sentence: str) -> None:
    """Print a sentence below a table."""
    plain_console().print(visible(sentence))


def plain_console(width: int = 10_000) -> Console:
    """Return a console that takes text literally; ``width`` is that of a pipe, so wide that nothing is wrapped."""
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = width
    return console


def mean_iteration(iterations: Sequence[Mapping[str, Timed]]) -> dict[str, Timed]:
    """Return calls and seconds of each part in a mean iteration, the most expensive first.

    The first iteration, which warms up, is left out where there are others.
    """
    counted = iterations[1:] or iterations
    names = dict.fromkeys(name for iteration in counted for name in iteration)
    means = {}
    for name in names:
        parts = [iteration.get(name, Timed()) for iteration in counted]
        means[name] = Timed(round(fmean(part.calls for part in parts)), fmean(part.seconds for part in parts))
    return dict(sorted(means.items(), key=lambda item: -item[1].seconds))


def print_profile(profile: Profile) -> None:
    """Print the mean iteration of ``profile``."""
    means = mean_iteration(profile.iterations)
    if not means:
        print_line("no iteration was trained, so there is no profile: the run is done, or its recipe has no rlft.")
        return
    total = sum(part.seconds for part in means.values())
    rows = [
        (name, str(part.calls or ""), f"{part.seconds:.3f}", f"{part.seconds / total:.0%}")
        for name, part in means.items()
    ]
    heads = ("part of an iteration", "calls", "seconds", "share")
    print_rows(heads, [*rows, ("all", "", f"{total:.3f}", "100%")], words=1)
    later = len(profile.iterations) - 1
    print_line(f"mean of {counted(later, 'iteration')}, without the first" if later else "the only iteration")
