"""Effort of a run: the stages of its curriculum, its seconds and its calls to chat models."""

from __future__ import annotations

from reflectrl.report.costs import total_dollars
from reflectrl.report.escape import escaped
from reflectrl.report.markup import table
from reflectrl.report.runs import Run
from reflectrl.report.series import running_mean, stages, success_band


def curriculum(run: Run) -> str:
    """Table of the stages of training; empty where there was none."""
    if not run.points:
        return ""
    means = running_mean(run.points, [point.success for point in run.points])
    band = success_band(run) if run.episodes > 0 else None
    rows = []
    for name, places in stages(run.points):
        first, last = run.points[places.start].iteration, run.points[places.stop - 1].iteration
        low, high = band[places.stop - 1] if band else (0.0, 0.0)
        interval = f" [{100 * low:.0f}, {100 * high:.0f}]" if band else ""
        success = f"{means[places.stop - 1]:.0%}{interval}"
        rows.append((escaped(name, 200), f"{len(places):,}", f"{first:,} to {last:,}", success))
    columns = ("stage", "iterations", "from, to", "success [95 %]" if band else "success")
    return f"<h4>Curriculum</h4>{table('Curriculum stages', columns, rows, words=1)}{_training(run)}"


def _training(run: Run) -> str:
    summary = f"{len(run.points):,} iterations, {run.points[-1].env_steps:,} environment steps"
    if run.paces:
        hits = run.paces[-1].reflection_hit_rate  # since the start
        summary += f", {sum(pace.seconds for pace in run.paces):,.0f} s, reflection cache hit rate {hits:.0%}"
    return f'<p class="note">Success: running mean at the end of the stage. Training: {summary}.</p>'


def cost(run: Run) -> str:
    """Seconds by stage and calls by role; empty where neither is known."""
    return "".join((_seconds(run), _calls(run)))


def _seconds(run: Run) -> str:
    if not run.times:
        return ""
    rows = [
        (time.name, *((f"{time.wall_seconds:,.1f}", f"{time.cpu_seconds:,.1f}") if time.done else ("not done", "")))
        for time in run.times
    ]
    head = ("stage", "seconds", "CPU seconds")
    note = '<p class="note">Of the last start of each stage; a stage that was interrupted took longer.</p>'
    return f"<h4>Time</h4>{table('Seconds by stage', head, rows, words=1)}{note}"


def _calls(run: Run) -> str:
    if not run.calls:
        return ""
    rows = [
        (
            escaped(calls.role, 200),
            escaped(calls.model, 200),
            f"{calls.replies:,}",
            f"{calls.rejected:,}",
            f"{calls.prompt_tokens:,}",
            f"{calls.completion_tokens:,}",
            "not known" if calls.dollars is None else f"{calls.dollars:,.4f}",
        )
        for calls in run.calls
    ]
    head = ("role", "model", "replies", "set aside", "tokens sent", "answered", "dollars")
    total = total_dollars(run.calls)
    note = "The recipe has no price for some of them." if total is None else f"{total:,.4f} dollars in all."
    return (
        f"<h4>Calls to chat models</h4>{table('Calls to chat models', head, rows, words=2)}<p class='note'>{note}</p>"
    )
