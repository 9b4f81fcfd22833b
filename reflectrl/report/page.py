"""The HTML report: one file that needs no network and nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from reflectrl.core import InvalidInput
from reflectrl.core.files import check_output, write_text
from reflectrl.report.curves import colour, curves
from reflectrl.report.effort import cost, curriculum
from reflectrl.report.escape import escaped
from reflectrl.report.markup import table
from reflectrl.report.runs import Run, read_runs
from reflectrl.report.sources import read_sources
from reflectrl.report.table import FIRST_NUMBER, SUCCESS, cells, columns, played_on, table_rows
from reflectrl.report.viewer import script_hash, style, viewer
from reflectrl.rollout.results import EvalRow

# The content policy is a second lock behind the escaping: a browser runs our one script, whatever the page holds.
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src '$hash'; base-uri 'none'; form-action 'none'">
<meta name="color-scheme" content="light dark">
<title>$title: Reflect-RL</title>
<style>$style</style>
</head>
<body>
<header>
<h1>Reflect-RL report <small>$title</small></h1>
<nav aria-label="Sections"><a href="#results">Results</a> <a href="#curves">Curves</a>
<a href="#trajectories">Episodes</a> <a href="#runs">Runs</a></nav>
</header>
<main>
<section id="results"><h2>Results</h2>
$table
</section>
<section id="curves"><h2>Learning curves</h2>
$curves
</section>
<section id="trajectories"><h2>Episodes</h2>
$viewer
</section>
<section id="runs"><h2>Runs</h2>
$runs
</section>
</main>
</body>
</html>
""")

_KEY = (
    "Faint: each iteration. Bold: running mean over a twentieth of the run, at least 5 iterations; the band is its "
    "95 % Wilson interval. Cache hits are counted since training was last started."
)
_UNTRAINED = "No iteration of training yet; run <code>reflectrl rlft</code>."
_INTERVALS = "In brackets, and as the dark stroke in the bar: the 95 % Wilson interval. Illegal: share of all steps."


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write the report of the run folders ``runs`` to the file ``out``, all of it or nothing; returns ``out``.

    Raises:
        InvalidInput: no run, a folder that is none, a damaged file in it, or an ``out`` that cannot be written.

    """
    check_output(out)
    page = report_page(read_runs(runs))
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
        hash=script_hash(),
        style=style(),
        table=_table(runs),
        curves=f'{drawn}<p class="note">{_KEY if drawn else _UNTRAINED}</p>',
        viewer=viewer(runs, read_sources(runs)),
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
    heads = columns([row for _, row in rows])
    shown = [_cells(run, row, heads) for run, row in rows]
    drawn = table(
        "Results", heads, shown, words=heads.index(FIRST_NUMBER), main=[row.policy == "rlft" for _, row in rows]
    )
    where = "".join(f"<p>Played on {escaped(tasks)}.</p>" for tasks in played_on(runs))
    return f'{drawn}{where}<p class="note">{_INTERVALS}</p>{waiting}'


def _cells(run: str, row: EvalRow, heads: Sequence[str]) -> list[str]:
    metrics = row.metrics
    bar = (
        f'<span class="bar"><i style="width:{metrics.success:.1%}"></i>'
        f'<b style="left:{metrics.success_low:.1%};width:{metrics.success_high - metrics.success_low:.1%}"></b></span>'
    )
    return [
        escaped(cell) + (bar if head == SUCCESS else "")
        for head, cell in zip(heads, cells(run, row, heads), strict=True)
    ]


def _run(number: int, run: Run) -> str:
    return (
        f'<section class="run"><h3 class="swatch {colour(number)}">{escaped(run.name, 200)}</h3>'
        f'<div class="effort">{"".join(f"<div>{part}</div>" for part in (curriculum(run), cost(run)) if part)}</div>'
        f"<details><summary>Recipe</summary><pre>\n{escaped(run.recipe, 40_000)}</pre></details></section>"
    )
