"""The HTML report: one file that needs no network and nothing beside it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from string import Template

from reflectrl.core import InvalidInput
from reflectrl.core.files import write_output
from reflectrl.core.text import first_line
from reflectrl.report import audit, judged
from reflectrl.report.compare import HEADS, Summary, compare, group_cells, group_runs
from reflectrl.report.curves import colours, curves
from reflectrl.report.markup import asset, escaped, excerpt, prose, table
from reflectrl.report.progress import HEADS as PROGRESS
from reflectrl.report.progress import progress, progress_rows
from reflectrl.report.runs import RunData, total_dollars
from reflectrl.report.series import lessons, measurements, running_mean, success_band
from reflectrl.report.sources import Source, Sources, find_sources, read_sources
from reflectrl.report.tables import (
    FIRST_NUMBER,
    OUTDATED,
    SUCCESS,
    TRIAL_HEADS,
    TRIAL_NOTE,
    TRIAL_WORDS,
    cells,
    columns,
    played_on,
    table_rows,
    trial_cells,
    warnings_on,
    with_interval,
)
from reflectrl.report.verdict import Headline, headlines, judged_of, judged_splits, verdict
from reflectrl.rollout.iteration import best_check
from reflectrl.rollout.results import EvalRow

_KEY = (
    "Faint: each iteration. Bold: running mean over a twentieth of the run, at least 5 iterations; the band is its "
    "95 % Wilson interval. For runs that differ in the seed, bold is the mean of these means over the runs that have "
    "one at an iteration, the band its 95 % t interval where these are two or more, faint each run. Learning rate and "
    "entropy coefficient are drawn as they were. Cache hits are counted since training was last started."
)
_UNTRAINED = '<p class="note">No iteration of training yet; run <code>reflectrl rlft</code>.</p>'
_INTERVALS = "In brackets, and as the dark stroke in the bar: the 95 % Wilson interval. Illegal: share of all steps."

_UNTOLD = "There is no verdict before the policy after RLFT is evaluated: `reflectrl eval`, with rlft in eval.policies."
_COMPARED = (
    "Groups of runs whose recipes differ in the seed only; sampled success in per cent, with 95 % intervals. IQM: mean "
    "of the middle half of the runs, with a bootstrap interval. P(> SFT), P(> first): probability that a run ends "
    "above one before RLFT, above one of the first group (Agarwal et al. 2021). Fall: largest distance of a training's "
    "end from its own best."
)
_CHECKS = (
    "The weights with the lowest held-out loss are kept, for a single player with the lowest mean of both. Loss: mean "
    "since the check before. Accuracy: labels that the policy prefers, and reflections that are right to the last "
    "word; words: those that are the most probable after the teacher's words before them."
)
_SILENT = "Stepping through episodes needs JavaScript, which is off here; tables and curves do not."
_UNRECORDED = "No episodes are recorded yet."
_BEST = ("rlft", "sft", "remote", "base")
"""Policies by preference for the one that is shown first."""


@dataclass
class Live:
    """What is different in a page that follows its runs: a server has the episodes, and says when there is more."""

    title: str
    version: str
    """Name of this state of the page."""
    unread: Sequence[tuple[str, str]] = ()
    """Names of the runs that cannot be read, and the reasons."""
    written: Mapping[str, float] = field(default_factory=dict)
    """By run, when one of its files was written last, in seconds since 1970."""
    sources: dict[str, Source] = field(default_factory=dict)
    """The sources of the page by their keys in its index; filled in by ``report_page``."""


def write_report(runs: Sequence[RunData], out: Path) -> Path:
    """Write the report of ``runs`` to the file ``out``, all of it or nothing; returns ``out``.

    Raises:
        InvalidInput: a damaged file of a run, or an ``out`` that cannot be written.

    """
    write_output(out, report_page(runs))
    return out


def report_page(runs: Sequence[RunData], live: Live | None = None) -> str:
    """Return the page; equal runs give an equal page.

    Its content security policy adds to the escaping: a browser runs our own scripts only, whatever the page holds.

    Args:
        runs: the runs; at least one unless it is live.
        live: makes it a page that follows the runs; absent, it is one that needs nothing beside it.

    """
    drawn = curves(runs)
    words = verdict(runs) or [_UNTOLD]
    lead = '<p class="lead">' if len(group_runs(runs)) == 1 else "<p>"
    scripts = ["curves.js", "viewer.js", *(["live.js"] if live else [])]
    return Template(asset("page.html")).substitute(
        version=f' data-version="{escaped(live.version)}"' if live else "",
        title=escaped(live.title if live else ", ".join(run.name for run in runs), 200),
        hashes=" ".join(map(_hash, scripts)),
        server="connect-src 'self';" if live else "",
        style=asset("style.css"),
        link='<p id="link" class="late" role="status" hidden></p>' if live else "",
        progress=_progress(runs, live),
        headline="".join(map(_headline, headlines(runs))),
        verdict="".join(f"<p>{prose(sentence)}</p>" for sentence in words).replace("<p>", lead, 1),
        comparison=_comparison(runs),
        table=results_table(runs) + _reflections(runs),
        curves=f'{drawn}<p class="note">{_KEY}</p>' if drawn else _UNTRAINED,
        viewer=_viewer(runs, live),
        runs="".join(map(_run, runs, colours(runs))),
        scripts="\n".join(f"<script>{asset(name)}</script>" for name in scripts),
    )


def _hash(name: str) -> str:
    digest = hashlib.sha256(asset(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _progress(runs: Sequence[RunData], live: Live | None) -> str:
    """Return how far the runs are, where several are followed or one is not done; else empty."""
    going = any(run.times and not progress(run).finished for run in runs)
    unread = live.unread if live else ()
    if not runs and not unread:
        return f"<h2>Progress</h2><p>No run has begun in {escaped(live.title)} yet.</p>" if live else ""
    if not (going or unread or (live and len(runs) > 1)):
        return ""
    written = live.written if live else {}
    heads = (*PROGRESS, "last written") if live else PROGRESS
    rows = [[*map(escaped, row), *([_age(written.get(row[0]))] if live else [])] for row in progress_rows(runs, unread)]
    return f"<h2>Progress</h2>{table('Progress', heads, rows, words=3)}"


def _age(written: float | None) -> str:
    """Return an element in which the page counts how long ago that was."""
    if written is None:
        return ""
    shown = datetime.fromtimestamp(written, UTC)
    return f'<time datetime="{shown:%Y-%m-%dT%H:%M:%SZ}">{shown:%H:%M:%S} UTC</time>'


def _headline(found: Headline) -> str:
    """Return a figure of a group's success rates, with their intervals as strokes in the bars."""
    rates = "".join(
        f"<div><dt>{what}</dt><dd><strong>{100 * rate.mean:.0f}\u00a0%</strong> "
        f"<small>[{100 * rate.low:.0f}, {100 * rate.high:.0f}]</small>{_bar(rate.mean, rate.low, rate.high)}</dd></div>"
        for what, rate in found.rates
    )
    name = f"<h3>{escaped(found.group, 200)}</h3>" if found.group else ""
    return f'{name}<dl class="headline">{rates}</dl>'


def _bar(rate: float, low: float, high: float) -> str:
    return (
        f'<span class="bar"><i style="width:{rate:.1%}"></i>'
        f'<b style="left:{low:.1%};width:{high - low:.1%}"></b></span>'
    )


def results_table(runs: Sequence[RunData]) -> str:
    """Return the results of all policies of ``runs``, and what is missing of them."""
    waiting = "".join(
        f'<p class="note">{escaped(run.name)}: not evaluated yet; run <code>reflectrl eval</code> for it.</p>'
        for run in runs
        if not run.rows
    )
    waiting += "".join(f'<p class="note">{prose(f"{run.name}: {OUTDATED}.")}</p>' for run in runs if run.outdated_rows)
    rows = table_rows(runs)
    if not rows:
        return waiting
    own = {row for each in runs for row in each.own_rows}
    drawn = drawn_rows(rows, main=[row.policy == "rlft" and row in own for _, row in rows], named=len(runs) > 1)
    where = "".join(f"<p>Played on {escaped(tasks)}.</p>" for tasks in played_on(runs))
    where += "".join(f"<p>{escaped(warning)}</p>" for warning in warnings_on([row for _, row in rows]))
    return f'{drawn}{where}<p class="note">{_INTERVALS}</p>{waiting}'


def drawn_rows(rows: Sequence[tuple[str, EvalRow]], *, main: Sequence[bool], named: bool = False) -> str:
    """Return a table of results.

    Args:
        rows: name of the run and row of its evaluation, for each row of the table.
        main: True for the rows that stand out.
        named: show the names of the runs; those of one run are named in a title.

    """
    run, policy, *others = columns([row for _, row in rows])
    others.remove(SUCCESS)
    heads = (run, policy, SUCCESS, *others)  # a narrow screen shows what matters first
    shown = [_cells(name, row, heads) for name, row in rows]
    begin = 0 if named else 1
    words = heads.index(FIRST_NUMBER) - begin
    return table("Results", heads[begin:], [row[begin:] for row in shown], words=words, main=main)


def _comparison(runs: Sequence[RunData]) -> str:
    """Return the table that ``reflectrl compare`` prints; empty for one run, or where RLFT was not evaluated."""
    if len(runs) == 1 or not (rows := judged_of(runs)):
        return ""
    groups, remarks = compare(runs, rows)
    of = [f"On split {rows.split}."] if any(len(judged_splits(run)) > 1 for run in runs) else []
    return f"<h3>Comparison</h3>{comparison_table(groups, [*of, *remarks])}"


def comparison_table(groups: Sequence[Summary], remarks: Sequence[str]) -> str:
    """Return a table of groups of runs, with remarks below it."""
    lines = [list(map(escaped, group_cells(summary))) for summary in groups]
    for line in lines:
        line[HEADS.index("worst")] = f'<span class="named">{line[HEADS.index("worst")]}</span>'
    notes = "".join(f'<p class="note">{note}</p>' for note in (_COMPARED, *map(prose, remarks)))
    return f"{table('Comparison', HEADS, lines, words=1)}{notes}"


def _reflections(runs: Sequence[RunData]) -> str:
    """Return the audits of reflectors that the evaluations made; empty without any."""
    rows = [
        [escaped(run.name), *map(escaped, judged.share_cells(row, row.audit))]
        for run in runs
        for row in run.own_rows
        if row.audit
    ]
    if not rows:
        return ""
    begin = 1 if len(runs) == 1 else 0
    heads = ("run", *judged.HEADS)
    drawn = table("Reflections", heads[begin:], [row[begin:] for row in rows], words=4 - begin)
    return f'<h3>Reflections against the expert\'s</h3>{drawn}<p class="note">{prose(judged.NOTE)}</p>'


def _cells(run: str, row: EvalRow, heads: Sequence[str]) -> list[str]:
    metrics = row.metrics
    bar = _bar(metrics.success, metrics.success_low, metrics.success_high)
    return [
        f'<span class="rate">{escaped(cell)}</span>{bar}' if head == SUCCESS else escaped(cell)
        for head, cell in zip(heads, cells(run, row, heads), strict=True)
    ]


def _viewer(runs: Sequence[RunData], live: Live | None) -> str:
    """Return the viewer with its episodes, which a live page leaves to its server, and what is missing of them."""
    if live:
        each = [_sources_of(run) for run in runs]
        found = tuple(source for of_run in each for source in of_run.found)
        sources = Sources(found, tuple(said for of_run in each for said in of_run.missing))
        live.sources.update((excerpt(source.key, 400), source) for source in found)
    else:
        sources = read_sources(runs)
    missing = sources.missing if sources.found else (_UNRECORDED, *sources.missing)
    notes = "".join(f'<p class="note">{prose(sentence)}</p>' for sentence in missing)
    blocks = "".join(
        f'<script type="text/plain" id="source-{number}">{source.block}</script>\n'
        for number, source in enumerate(sources.found)
        if source.block
    )
    return (
        f'{asset("viewer.html")}<noscript><p class="note">{_SILENT}</p></noscript><div id="missing">{notes}</div>'
        f'<script type="application/json" id="index">{_index(runs, sources, live=live is not None)}</script>{blocks}'
        f'<script type="application/json" id="pictures">{json.dumps(sources.pictures)}</script>'
    )


def _sources_of(run: RunData) -> Sources:
    """Return the sources of a run, or the reason why they cannot be read: other runs are on the page too."""
    try:
        return find_sources(run)
    except (InvalidInput, OSError) as error:
        return Sources((), (f"{run.name}: its episodes cannot be read: {first_line(error, 300)}",))


def _index(runs: Sequence[RunData], sources: Sources, *, live: bool) -> str:
    """Return the index of runs and sources, as JSON that cannot end its element."""
    of_first_run = [source.policy for source in sources.found if source.run == sources.found[0].run]
    value = {
        "runs": [
            {"name": excerpt(run.name, 200), "gamma": run.gamma, "most": _number(run.settings.get("model.max_length"))}
            for run in runs
        ],
        "sources": [
            {
                "key": excerpt(source.key, 400),
                "run": runs.index(source.run),
                "label": excerpt(source.label, 200),
                "training": not source.policy,
                "episodes": source.episodes,
                "version": source.version if live else "",
            }
            for source in sources.found
        ],
        "first": next((of_first_run.index(policy) for policy in _BEST if policy in of_first_run), 0),
    }
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _number(setting: object) -> int | None:
    return setting if isinstance(setting, int) else None


def _run(run: RunData, classes: str) -> str:
    seed = "" if run.seed is None else f"Seed {run.seed}. "
    made = f'<p class="note">{seed}{escaped(f"Begun {run.origin}." if run.origin else "")}</p>'
    parts = (
        _fine_tuning(run),
        _curriculum(run),
        _ratings(run),
        _trials(run),
        _seconds(run) + _calls(run),
    )
    effort = "".join(f"<div>{part}</div>" for part in parts if part)
    return (
        f'<section class="run"><h3 class="swatch {classes}">{escaped(run.name, 200)}</h3>'
        f'{made}<div class="effort">{effort}</div>'
        f"<details><summary>Recipe</summary><pre tabindex=0>\n{escaped(run.recipe, 40_000)}</pre></details></section>"
    )


def _fine_tuning(run: RunData) -> str:
    """Return a table of the first, the best and the last check of each player; empty where nothing was held out."""
    rows = []
    for player, checks in run.sft.items():
        best = checks[best_check(run.sft if run.reflector == "self" else {player: checks})]
        for name, check in (("first", checks[0]), ("kept", best), ("last", checks[-1])):
            words = "" if check.word_accuracy is None else f"{check.word_accuracy:.0%}"
            numbers = (
                f"{check.step:,}",
                "" if check.loss is None else f"{check.loss:.3f}",
                f"{check.held_out_loss:.3f}",
                f"{check.accuracy:.0%}",
            )
            rows.append((player, name, *numbers, words))
    if not rows:
        return ""
    head = ("player", "check", "step", "loss", "held-out loss", "held-out accuracy", "words")
    return f'<h4>SFT</h4>{table("Supervised fine-tuning", head, rows, words=2)}<p class="note">{_CHECKS}</p>'


def _curriculum(run: RunData) -> str:
    """Return a table of the lessons of training; empty where there was none."""
    if not run.points:
        return ""
    means = running_mean(run.points, [point.success for point in run.points])
    band = success_band(run) if run.episodes > 0 else None
    rows = []
    for name, places in lessons(run.points):
        first, last = run.points[places.start].iteration, run.points[places.stop - 1].iteration
        mean = means[places.stop - 1]
        success = with_interval(mean, *band[places.stop - 1]) if band else f"{mean:.0%}"
        rows.append((escaped(name, 200), success, f"{len(places):,}", f"{first:,} to {last:,}"))
    columns = ("lesson", "success [95 %]" if band else "success", "iterations", "from, to")
    return f"<h4>Curriculum</h4>{table('Curriculum lessons', columns, rows, words=1)}{_training(run)}"


def _training(run: RunData) -> str:
    summary = f"{len(run.points):,} iterations, {run.points[-1].env_steps:,} environment steps"
    if validated := measurements(run.points, "validation_success"):
        best, iteration = max((success, point.iteration) for point, success in validated)
        summary += f", best validation {best:.0%} after iteration {iteration:,}, last {validated[-1][1]:.0%}"
    if starts := measurements(run.points, "validation_start"):
        summary += f", validation of the weights before RLFT {starts[-1][1]:.0%}"
    if experts := measurements(run.points, "validation_expert"):
        summary += f", of the expert {experts[-1][1]:.0%}"
    if run.paces:
        hits = run.paces[-1].reflection_hit_rate  # over all iterations since the start
        summary += f", {sum(pace.seconds for pace in run.paces):,.0f} s, reflection cache hit rate {hits:.0%}"
    return f'<p class="note">Success: running mean at the end of the lesson. Training: {summary}.</p>'


def _ratings(run: RunData) -> str:
    """Return the audit of the run's rater; empty without one."""
    if not run.ratings:
        return ""
    parts = table("Agreement of ratings with success", audit.HEADS, audit.agreement_rows(run), words=1)
    levels = table("Ratings by level", audit.LEVELS, audit.level_rows(run), words=1)
    return f'<h4>Ratings</h4>{parts}{levels}<p class="note">{escaped(audit.NOTE)}</p>'


def _trials(run: RunData) -> str:
    """Return the table of the run's trials; empty without any."""
    if not run.trials:
        return ""
    rows = [list(map(escaped, row[1:])) for row in trial_cells([run])]
    drawn = table("Trials", TRIAL_HEADS[1:], rows, words=len(TRIAL_WORDS) - 1)
    return f'<h4>Trials</h4>{drawn}<p class="note">{escaped(TRIAL_NOTE)}</p>'


def _seconds(run: RunData) -> str:
    if not run.times:
        return ""
    rows = [
        (time.name, *((f"{time.wall_seconds:,.1f}", f"{time.cpu_seconds:,.1f}") if time.done else ("not done", "")))
        for time in run.times
    ]
    head = ("stage", "seconds", "CPU seconds")
    note = '<p class="note">Of all starts of each stage, except those that were killed.</p>'
    return f"<h4>Time</h4>{table('Seconds by stage', head, rows, words=1)}{note}"


def _calls(run: RunData) -> str:
    if not run.calls:
        return ""
    rows = [
        (
            escaped(calls.role, 200),
            escaped(calls.model, 200),
            f"{calls.replies:,}",
            f"{calls.lenient:,}",
            f"{calls.rejected:,}",
            f"{calls.prompt_tokens:,}",
            f"{calls.completion_tokens:,}",
            "not known" if calls.dollars is None else f"{calls.dollars:,.4f}" if calls.dollars else "none",
        )
        for calls in run.calls
    ]
    head = ("role", "model", "replies", "read leniently", "set aside", "tokens sent", "tokens received", "dollars")
    total = total_dollars(run.calls)
    spent = f"{total:,.4f} dollars in all." if total else "None of them costs anything."
    note = "The recipe has no price for some of them." if total is None else spent
    if unanswered := sum(calls.unanswered for calls in run.calls):
        note += (
            f" Requests without a reply: {unanswered:,}; a process was killed or a connection broke. They may have "
            "been charged, so the dollars count the most that they may cost."
        )
    return (
        f"<h4>Calls to chat models</h4>{table('Calls to chat models', head, rows, words=2)}<p class='note'>{note}</p>"
    )
