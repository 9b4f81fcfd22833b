"""The report command: one or several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.shared import RunFolders
from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput


def report(
    runs: RunFolders,
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
    from reflectrl.report import report as write

    say(f"report: {write(runs, out, episode=episode)}")
