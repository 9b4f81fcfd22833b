"""How far runs are: the stage, the part of it that is done, the time it needs at most, success, minutes and cost."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean

from reflectrl.core.run_files import unfinished_files
from reflectrl.report.runs import RunData, total_dollars
from reflectrl.report.series import lessons, steady_success
from reflectrl.report.verdict import judged_row

HEADS = ("run", "stage", "progress", "minutes left", "success now", "best", "evaluated success", "minutes", "dollars")
RECENT = 20
"""Number of the last iterations whose mean time says how long the others will take."""


@dataclass(frozen=True)
class Progress:
    """How far the last stage of a run is that was begun."""

    stage: str
    """Name of the stage, and ``done`` if it is; ``new`` before the first one."""
    finished: bool
    """True if the stage is done."""
    done: str = ""
    """Part of the stage that is done; empty where that is not known."""
    seconds_left: float | None = None
    """Seconds for the rest of the stage at the present pace, if it does not end early; ``None`` if not known."""


def progress(run: RunData) -> Progress:
    """Return how far ``run`` is; whether a process is at work on it, its files do not tell."""
    if not run.times:
        return Progress("new", finished=False)
    last = run.times[-1]
    if last.done:
        return Progress(f"{last.name} done", finished=True)
    if last.name == "rlft":
        planned = _planned(run.settings.get("rlft.lessons"))
        ended = [len(places) for _, places in lessons(run.points)][:-1]  # some of them early, at their threshold
        total = sum(ended) + sum(planned[len(ended) :])
        made, paces = len(run.points), run.paces[-RECENT:]
        left = fmean(pace.seconds for pace in paces) * max(0, total - made) if total and paces else None
        return Progress("rlft", finished=False, done=_part(made, total, "iterations"), seconds_left=left)
    if last.name == "sft" and run.sft:
        player, checks = [*run.sft.items()][-1]
        steps = run.settings.get(f"sft.{player}.steps")
        done = _part(checks[-1].step, steps if isinstance(steps, int) else 0, "steps")
        return Progress(f"sft of the {player}", finished=False, done=done)
    if last.name == "eval":
        rows = 0
        for path in unfinished_files(run.path, "eval"):
            with suppress(FileNotFoundError):  # the evaluation has just ended
                rows += path.read_bytes().count(b"\n")
        return Progress("eval", finished=False, done=f"{rows:,} rows")
    return Progress(last.name, finished=False)


def _planned(lessons: object) -> list[int]:
    found = [each.get("iterations") for each in lessons if isinstance(each, dict)] if isinstance(lessons, list) else []
    return [count for count in found if isinstance(count, int)]


def _part(made: int, total: int, what: str) -> str:
    return f"{made:,} of {total:,} {what}" if total else f"{made:,} {what}"


def progress_cells(run: RunData) -> tuple[str, ...]:
    """Return a row of ``HEADS``."""
    now = progress(run)
    means = [mean for _, mean in steady_success(run)] if run.points else []
    evaluated = judged_row(run, "rlft") or next((row for row in run.own_rows if row.policy == "rlft"), None)
    dollars = total_dollars(run.calls)
    seconds = sum(time.wall_seconds for time in run.times)
    if not now.finished and run.times and run.times[-1].name == "rlft":
        seconds = sum(time.wall_seconds for time in run.times[:-1]) + sum(pace.seconds for pace in run.paces)
    return (
        run.name,
        now.stage,
        now.done,
        "" if now.seconds_left is None else f"{now.seconds_left / 60:.1f}",
        f"{means[-1]:.0%}" if means else "",
        f"{max(means):.0%}" if means else "",
        f"{evaluated.metrics.success:.0%}" if evaluated else "",
        f"{seconds / 60:.1f}",
        f"{dollars:,.2f}" if dollars else "",
    )


def progress_rows(runs: Iterable[RunData], unread: Iterable[tuple[str, str]] = ()) -> list[tuple[str, ...]]:
    """Return a row of ``HEADS`` for each run, by name, with those that cannot be read and the reasons."""
    lost = [(name, f"cannot be read: {why}", *[""] * (len(HEADS) - 2)) for name, why in unread]
    return sorted([*map(progress_cells, runs), *lost])
