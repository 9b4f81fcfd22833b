"""The report command: one or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput
from reflectrl.core.layout import REPORT


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; report.html in the run, or here for several runs.")
    ] = None,
    episode: Annotated[
        bool, typer.Option("--episode", help="Also print a task that the first run lost before RLFT and won after it.")
    ] = False,
) -> None:
    """Print the runs' table and a verdict, and write their HTML report."""
    absent = [str(run) for run in runs if not run.is_dir()]
    if absent:
        raise InvalidInput(f"no run folder is at {', '.join(absent)}; expected folders that 'reflectrl run' has made.")
    from reflectrl.report import print_table, print_verdict, write_report

    folder = runs[0] if len(runs) == 1 else Path()
    written = write_report(runs, out or folder / REPORT)
    print_table(runs)
    if episode:
        from reflectrl.report.beside import print_before_and_after

        print_before_and_after(runs[0])
    print_verdict(runs)
    say(f"report: {written}")
