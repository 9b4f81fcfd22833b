"""Shows the results of runs: a table and a verdict on the terminal, and one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reflectrl.core import InvalidInput
from reflectrl.core.files import check_output
from reflectrl.core.run_files import REPORT
from reflectrl.report.page import write_report
from reflectrl.report.runs import read_runs
from reflectrl.report.tables import print_table
from reflectrl.report.terminal import print_before_and_after
from reflectrl.report.verdict import print_verdict


def report(runs: Sequence[Path], out: Path | None = None, *, episode: bool = False) -> Path:
    """Write the HTML report of run folders, and print their table and a verdict; return the path of the report.

    Args:
        runs: the run folders.
        out: the HTML file; by default ``report.html`` in the run, or in the working folder for several runs.
        episode: also print a task that the first run lost before RLFT and won after it.

    Raises:
        InvalidInput: no run, a folder that is not a run folder, a damaged file in it, or an ``out`` that cannot be
            written.

    """
    out = out or (runs[0] if len(runs) == 1 else Path()) / REPORT
    check_output(out)
    if out.suffix.lower() not in (".html", ".htm"):
        raise InvalidInput(f"--out {out} was given; expected a name that ends in .html.")
    read = read_runs(runs)
    written = write_report(read, out)
    print_table(read)
    if episode:
        print_before_and_after(read[0])
    print_verdict(read)
    return written


__all__ = ["report"]
