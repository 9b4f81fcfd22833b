"""List of the run folders in a folder, with the stage and the success rates of each."""

from __future__ import annotations

from pathlib import Path

from reflectrl.core import InvalidInput
from reflectrl.core.run_files import run_folders
from reflectrl.core.text import first_line
from reflectrl.report.runs import RunData, read_runs
from reflectrl.report.series import steady_success
from reflectrl.report.tables import print_rows
from reflectrl.report.verdict import judged_row

HEADS = ("run", "stage", "success now", "best", "evaluated", "minutes")


def print_runs(folder: Path) -> None:
    """Print one line for each run folder in ``folder``, by name; for one that cannot be read, the reason.

    Raises:
        InvalidInput: there is no run folder.

    """
    found = run_folders(folder)
    if not found:
        raise InvalidInput(f"{folder} holds no run folder; expected a folder in which `reflectrl run` has made some.")
    print_rows(HEADS, [_line(path) for path in found], words=2)


def _line(path: Path) -> tuple[str, ...]:
    try:
        [run] = read_runs([path])
    except InvalidInput as error:
        return (path.name, f"cannot be read: {first_line(error, 80)}", "", "", "", "")
    means = [mean for _, mean in steady_success(run)] if run.points else []
    evaluated = judged_row(run, "rlft") or next((row for row in run.own_rows if row.policy == "rlft"), None)
    return (
        run.name,
        _stage(run),
        f"{means[-1]:.0%}" if means else "",
        f"{max(means):.0%}" if means else "",
        f"{evaluated.metrics.success:.0%}" if evaluated else "",
        f"{sum(time.wall_seconds for time in run.times) / 60:.1f}",
    )


def _stage(run: RunData) -> str:
    """Return the last stage that is done, or the one that was begun, with its iterations."""
    if not run.times:
        return "new"
    last = run.times[-1]
    if last.done:
        return f"{last.name} done"
    return f"{last.name}, {len(run.points)} iterations" if last.name == "rlft" else last.name
