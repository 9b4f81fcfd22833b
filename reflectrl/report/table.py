"""The table of results: every evaluated policy of every run, one under the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from reflectrl.report.escape import visible
from reflectrl.report.runs import Run, read_runs
from reflectrl.rollout.results import EvalRow

COLUMNS = ("run", "policy", "reflections by", "mode", "episodes", "success [95 %]", "return", "steps", "illegal")
SUCCESS = COLUMNS.index("success [95 %]")
WORDS = 4
"""So many columns, from the left, hold words; the others hold numbers."""

_UNTRAINED = {"random": -1, "expert": 1}
"""Policies that no run trains, with their place: before or after all others."""


def table_rows(runs: Sequence[Run]) -> list[tuple[str, EvalRow]]:
    """Name of the run and row, of all runs in order.

    The random policy and the expert stand there once for all runs that agree on them to the last digit, as runs of
    one environment and seed do.
    """
    owners: dict[tuple[str, EvalRow], list[str]] = {}
    for run in runs:
        for row in run.rows:
            owners.setdefault(("" if row.policy in _UNTRAINED else run.name, row), []).append(run.name)
    named = [
        ("all runs" if len(names) == len(runs) > 1 else ", ".join(names), row) for (_, row), names in owners.items()
    ]
    return sorted(named, key=lambda pair: _UNTRAINED.get(pair[1].policy, 0))


def played_on(runs: Sequence[Run]) -> list[str]:
    """What the results say of their tasks, each once: with its split, and with the runs where not all are meant."""
    named: dict[str, list[str]] = {}
    for run in runs:
        for said in dict.fromkeys(f"{row.benchmark}, split {row.split}" for row in run.rows if row.benchmark):
            named.setdefault(said, []).append(run.name)
    return [said if len(names) == len(runs) else f"{', '.join(names)}: {said}" for said, names in named.items()]


def cells(run: str, row: EvalRow) -> tuple[str, ...]:
    """A row's words and numbers, one a column."""
    metrics = row.metrics
    return (
        run,
        row.policy,
        row.reflections,
        row.mode,
        str(metrics.episodes),
        f"{metrics.success:.0%} [{100 * metrics.success_low:.0f}, {100 * metrics.success_high:.0f}]",
        f"{metrics.episode_return:+.2f}",
        f"{metrics.length:.1f}",
        f"{metrics.illegal:.1%}",
    )


def print_table(runs: Sequence[Path]) -> None:
    """Print the results of the run folders ``runs``: drawn on a terminal, plain columns elsewhere.

    Raises:
        InvalidInput: no run, or a folder that is none.

    """
    read = read_runs(runs)
    console = Console(markup=False, highlight=False, emoji=False)
    drawn = console.is_terminal
    table = Table(box=box.SIMPLE_HEAD if drawn else None, padding=(0, 0 if drawn else 1), pad_edge=False)
    for number, name in enumerate(COLUMNS):
        head = name.replace(" ", "\n", 1) if drawn else name
        table.add_column(head, justify="left" if number < WORDS else "right", no_wrap=number > 0, overflow="fold")
    above = None
    for run, row in table_rows(read):
        name = "" if drawn and run == above else run
        table.add_row(*map(visible, cells(name, row)), style="bold" if row.policy == "rlft" else None)
        above = run
    if not drawn:
        console.width = 10_000  # a pipe has no width: nothing is wrapped or cut
    if table.row_count:
        console.print(table)
    for said in played_on(read):
        console.print(visible(f"Played on {said}."))
    for each in read:
        if not each.rows:
            console.print(visible(f"{each.name}: not evaluated yet; run `reflectrl eval` for it."))
