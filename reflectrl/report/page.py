"""The HTML report: one file that needs no network, no script and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from reflectrl.core import InvalidInput
from reflectrl.core.files import write_text
from reflectrl.report.curves import colour, curves
from reflectrl.report.episodes import episodes
from reflectrl.report.escape import escaped
from reflectrl.report.runs import Run, read_runs
from reflectrl.report.style import STYLE
from reflectrl.report.table import COLUMNS, SUCCESS, WORDS, cells, played_on, table_rows
from reflectrl.rollout.results import EvalRow

# The content policy is a second lock behind the escaping: a browser runs no script in this page, whatever it holds.
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>$title: Reflect-RL</title>
<style>$style</style>
</head>
<body>
<h1>Reflect-RL report</h1>
<h2>Results</h2>
$table
<h2>Learning curves</h2>
$curves
$runs
</body>
</html>
""")

_KEY = "Faint: each iteration. Bold: running mean over a twentieth of the run, at least 5 iterations."
_UNTRAINED = "No iteration of training yet; run <code>reflectrl rlft</code>."
_INTERVALS = "In brackets, and as the dark stroke in the bar: the 95 % Wilson interval. Illegal: share of all steps."


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of the run folders ``runs`` to the file ``out``, all of it or nothing; returns ``out``.

    Raises:
        InvalidInput: no run, a folder that is none, a damaged file in it, or an ``out`` that cannot be written.

    """
    page = report_page(read_runs(runs))
    if out.is_dir():
        raise InvalidInput(f"{out} was given for the report and is a folder; expected the name of a file in it.")
    try:
        write_text(out, page)
    except OSError as error:
        raise InvalidInput(f"the report {out} cannot be written ({error.strerror}); choose another --out.") from error
    return out


def report_page(runs: Sequence[Run]) -> str:
    """The page; equal runs give an equal page."""
    drawn = curves(runs)
    return _PAGE.substitute(
        title=escaped(", ".join(run.name for run in runs), 200),
        style=STYLE,
        table=_table(runs),
        curves=f'{drawn}<p class="note">{_KEY if drawn else _UNTRAINED}</p>',
        runs="".join(_run(number, run) for number, run in enumerate(runs)),
    )


def _table(runs: Sequence[Run]) -> str:
    waiting = "".join(
        f'<p class="note">{escaped(run.name)}: not evaluated yet; run <code>reflectrl eval</code> for it.</p>'
        for run in runs
        if not run.rows
    )
    rows = table_rows(runs)
    if not rows:
        return waiting
    head = "".join(f'<th scope="col"{_side(column)}>{name}</th>' for column, name in enumerate(COLUMNS))
    body = "".join(_table_row(run, row) for run, row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    where = "".join(f"<p>Played on {escaped(said)}.</p>" for said in played_on(runs))
    return f'<div class="wide" tabindex="0">{table}</div>{where}<p class="note">{_INTERVALS}</p>{waiting}'


def _side(column: int) -> str:
    return "" if column < WORDS else ' class="number"'


def _table_row(run: str, row: EvalRow) -> str:
    metrics = row.metrics
    bar = (
        f'<span class="bar"><i style="width:{metrics.success:.1%}"></i>'
        f'<b style="left:{metrics.success_low:.1%};width:{metrics.success_high - metrics.success_low:.1%}"></b></span>'
    )
    shown = (escaped(cell) + (bar if column == SUCCESS else "") for column, cell in enumerate(cells(run, row)))
    inside = "".join(f"<td{_side(column)}>{cell}</td>" for column, cell in enumerate(shown))
    return f"<tr{' class=main' if row.policy == 'rlft' else ''}>{inside}</tr>"


def _run(number: int, run: Run) -> str:
    return (
        f'<section class="run"><h2 class="swatch {colour(number)}">{escaped(run.name, 200)}</h2>{_effort(run)}'
        f"<details><summary>Recipe</summary><pre>\n{escaped(run.recipe, 40_000)}</pre></details>"
        f"{episodes(run)}</section>"
    )


def _effort(run: Run) -> str:
    """What the training took."""
    if not run.points:
        return ""
    said = f"{len(run.points):,} iterations, {run.points[-1].env_steps:,} environment steps"
    if run.paces:
        hits = run.paces[-1].reflection_hit_rate  # since the start
        said += f", {sum(pace.seconds for pace in run.paces):,.0f} s, reflection cache hit rate {hits:.0%}"
    return f"<p>Training: {said}.</p>"
