"""The report command: one or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", exists=True, file_okay=False)],
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; report.html in the run, or here for several runs.")
    ] = None,
) -> None:
    """Print the runs' table and write their HTML report."""
    from reflectrl.report import print_table, write_report

    print_table(runs)
    folder = runs[0] if len(runs) == 1 else Path()
    print(f"report: {write_report(runs, out or folder / 'report.html')}")
