"""Learning curves as PNG, SVG or PDF, made for a column of a paper: the only module that needs matplotlib.

The same runs give the same bytes: no date is written, and no setting of the user's own matplotlib is read.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reflectrl.core import InvalidInput, nearest
from reflectrl.core.errors import need_one_of
from reflectrl.core.files import check_output, write_output
from reflectrl.core.text import shortened, visible
from reflectrl.report import arms
from reflectrl.report.arms import FIGURES, WHATS, XS, Line, axis_title
from reflectrl.report.runs import read_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
"""Colours of Okabe and Ito, which colour-blind readers can tell apart; the first ones differ in grey as well."""
DASHES = ((4.0, 1.5), (1.5, 1.2))
_MAX_CHARACTERS = 60
"""Characters of a label."""
_METADATA: Mapping[str, Mapping[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Metadata fields that are left out, by suffix of the file."""


def write_plot(
    runs: Sequence[Path],
    out: Path,
    *,
    labels: Mapping[Path, str] | None = None,
    what: str = "success",
    x: str = "iteration",
    stage: str | None = None,
    smooth: int | None = None,
    figure: int | None = None,
) -> None:
    """Draw runs, one line an arm, with the mean and its 95 % interval where an arm has several seeds.

    Args:
        runs: run folders.
        out: the output file; its suffix selects the kind.
        labels: names of runs; those of one name are seeds of one arm. Absent: the name of the folder.
        what: name of a metric in ``WHATS``.
        x: name of a field in ``XS``.
        stage: only this stage of the curriculum, counted from its beginning.
        smooth: iterations of the running mean; absent: a twentieth of the longest run, at least 5; 1 for what a
            schedule sets.
        figure: one of ``FIGURES``, which sorts the runs into the arms of that figure of the paper by their recipes.

    Raises:
        InvalidInput: runs that cannot be drawn in this way, an unknown metric, ``x`` or kind of file, or matplotlib is
            not installed.

    """
    kind = out.suffix.removeprefix(".").lower()
    if kind not in _METADATA:
        raise InvalidInput(f"{out} has the suffix {out.suffix!r}; {nearest(kind, _METADATA)}")
    need_one_of("metric", what, WHATS)
    need_one_of("x", x, XS)
    check_output(out)
    read = read_runs(runs)
    if figure is not None and figure not in FIGURES:
        raise InvalidInput(f"figure={figure} was given; expected one of {', '.join(map(str, FIGURES))}.")
    if figure is None:
        named = {path.resolve(): label for path, label in (labels or {}).items()}
        drawn, title = arms.arms_by_label(read, [named.get(run.path, run.name) for run in read]), axis_title(what)
    else:
        drawn, title = arms.arms_of(FIGURES[figure], read), FIGURES[figure].title
        if FIGURES[figure].last_stage:
            stage = stage or arms.last_stage(read)
    lines = arms.lines(drawn, what=what, x=x, stage=stage, smooth=smooth)
    starts = [] if stage else arms.stage_starts(read, x)
    title = title if stage is None else f"{title}, stage {visible(stage)}"
    write_output(out, _draw(lines, what, x, starts, kind, title))


def _draw(
    drawn: Sequence[Line], what: str, x: str, starts: Sequence[tuple[float, str]], kind: str, title: str
) -> bytes:
    try:
        import matplotlib.style
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise InvalidInput(
            f"plots need matplotlib, which is not installed ({error}); run pip install 'reflectrl[plots]'."
        ) from error
    with matplotlib.style.context(["default", Path(__file__).with_name("plot.mplstyle")]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a label may be in any script
        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        dashed = 0
        for number, line in enumerate(drawn):
            _draw_line(axes, number, line, dashed)
            dashed += line.dashed
        _limit(axes, what, drawn)
        for place, name in starts:
            axes.axvline(place, color="#888888", linewidth=0.6, linestyle=(0, (1, 2)))
            above: Any = {"transform": axes.get_xaxis_transform(), "va": "bottom"}
            axes.text(place, 1.0, f" {_clean(name)}", fontsize=6, color="#555555", **above)
        axes.set_xlabel(XS[x])
        axes.set_ylabel(axis_title(what))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.grid(axis="y", linewidth=0.4, color="#DDDDDD")
        axes.set_axisbelow(True)
        _legend(figure, axes, drawn)
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata={**_METADATA[kind], "Title": _clean(title)})
    return buffer.getvalue()


def _draw_line(axes: Axes, number: int, line: Line, dashed_before: int) -> None:
    colour = COLOURS[number % len(COLOURS)]
    again = number >= len(COLOURS)  # more lines than colours
    style: Any = (0, DASHES[(dashed_before + again) % len(DASHES)]) if line.dashed or again else "-"
    if line.half:
        low, high = zip(
            *((mean - half, mean + half) for mean, half in zip(line.mean, line.half, strict=True)), strict=True
        )
        axes.fill_between(line.x, low, high, color=colour, alpha=0.18, linewidth=0, gid=f"interval-{number}")
    if line.raw:
        axes.plot(line.x, line.raw, color=colour, alpha=0.25, linewidth=0.6, gid=f"raw-{number}")
    marker = "o" if len(line.x) == 1 else None
    # a line along an edge, such as that of no success at all, is neither cut in half nor below the axis
    shown: Any = {"marker": marker, "markersize": 3, "clip_on": False, "zorder": 3, "gid": f"arm-{number}"}
    axes.plot(line.x, line.mean, color=colour, linestyle=style, **shown)


def _limit(axes: Axes, what: str, drawn: Sequence[Line]) -> None:
    """Limit the axis to the metric's bounds, if it has any, even if an interval exceeds them."""
    metric = WHATS[what][1]
    if metric.fraction:
        axes.set_ylim(0, 100)
    elif metric.low is not None:
        axes.set_ylim(bottom=metric.low)
    begin, end = min(line.x[0] for line in drawn), max(line.x[-1] for line in drawn)
    if begin < end:
        axes.set_xlim(begin, end)


def _legend(figure: Figure, axes: Axes, drawn: Sequence[Line]) -> None:
    """Draw the legend above the axes, where it hides nothing."""
    handles = [line for line in axes.get_lines() if str(line.get_gid()).startswith("arm-")]
    labels = [_clean(line.label) for line in drawn]
    columns = max(1, min(len(labels), 60 // (max(map(len, labels)) + 6)))
    places = [str(number) for number in range(len(labels))]  # matplotlib leaves out labels that begin with _
    legend = figure.legend(handles, places, loc="outside upper center", ncols=columns, frameon=False, borderpad=0.1)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_text(label)


def _clean(label: str) -> str:
    """Return a label on one line, cut if long, without characters that XML forbids."""
    line = visible(" ".join(label.split())).replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")
    return shortened(line, _MAX_CHARACTERS, "…")
