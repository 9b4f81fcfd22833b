"""The plot command: learning curves for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from reflectrl.cli.terminal import say


def plot(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="[LABEL=]RUN", help="Run folders; those of one label are seeds of one line."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Output file: .png, .svg or .pdf.")],
    what: Annotated[
        str, typer.Option(metavar="METRIC", help="Metric of an iteration; an unknown one is refused with all names.")
    ] = "success",
    x: Annotated[
        Literal["iteration", "env_steps"], typer.Option(help="Quantity along which it is drawn.")
    ] = "iteration",
    stage: Annotated[
        str | None, typer.Option(help="Only this stage of the curriculum, counted from its beginning.")
    ] = None,
    smooth: Annotated[
        int | None,
        typer.Option(min=1, help="Iterations of the running mean; by default a twentieth of the longest run."),
    ] = None,
    figure: Annotated[
        int | None,
        typer.Option(min=2, max=4, help="Figure of the paper: 2 methods, 3 negatives, 4 curriculum; labels the lines."),
    ] = None,
) -> None:
    """Draw learning curves of runs, with 95 % intervals over seeds."""
    from reflectrl.core import InvalidInput
    from reflectrl.report.plots import write_plot

    labels: dict[Path, str] = {}
    paths = []
    for text in runs:
        label, equals, rest = text.partition("=")
        if not equals or Path(text).is_dir():
            paths.append(Path(text))
            continue
        if not label:
            raise InvalidInput(f"{text!r} was given, without a label before '='; give it one, or leave out the '='.")
        paths.append(Path(rest))
        if (known := labels.setdefault(paths[-1].resolve(), label)) != label:
            raise InvalidInput(f"{rest} was given as {known!r} and as {label!r}; give each run one label.")
    if labels and figure is not None:
        given = ", ".join(map(repr, labels.values()))
        raise InvalidInput(f"--figure names the lines itself, but {given} was given; leave out one of the two.")
    write_plot(paths, out, labels=labels, what=what, x=x, stage=stage, smooth=smooth, figure=figure)
    say(f"plot: {out}")
