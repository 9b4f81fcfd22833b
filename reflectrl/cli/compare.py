"""The commands that look at many runs: compare groups of them, and list run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from reflectrl.cli.shared import RunFolders
from reflectrl.cli.terminal import say, warn

Format = Literal["text", "markdown", "json"]


def compare(
    runs: RunFolders,
    by: Annotated[
        str, typer.Option("--by", help="Groups: 'recipe' (all but the seed), or a recipe key such as rlft.gamma.")
    ] = "recipe",
    policy: Annotated[str, typer.Option(help="Policy of the evaluation.")] = "rlft",
    split: Annotated[str, typer.Option(help="Split of the evaluation.")] = "test",
    mode: Annotated[Literal["sampled", "greedy"], typer.Option(help="How the policy played.")] = "sampled",
    reflections: Annotated[
        str | None, typer.Option(help="A control such as blank, or another reflector; default: the recipe's own.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="Form of the table.")] = "text",
    table: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="Write the table's numbers as CSV; - for stdout, in its place."),
    ] = None,
) -> None:
    """Compare groups of runs over their seeds: mean, interquartile mean, worst run, probability of improvement."""
    from reflectrl.core.files import check_output, write_output
    from reflectrl.report.compare import Rows, as_csv, as_json, as_markdown, print_comparison
    from reflectrl.report.compare import compare as summarise
    from reflectrl.report.runs import read_runs

    only_csv = table == Path("-")
    if table and not only_csv:
        check_output(table)
    summaries, remarks = summarise(read_runs(runs), Rows(policy, split, mode, reflections), by)
    for sentence in remarks:
        warn(sentence)
    if only_csv:
        say(as_csv(summaries), end="")
    elif output == "text":
        print_comparison(summaries)
    else:
        say({"markdown": as_markdown, "json": as_json}[output](summaries))
    if table and not only_csv:
        write_output(table, as_csv(summaries))


def list_runs(
    runs: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder that holds the run folders.")] = Path("runs"),
) -> None:
    """List run folders: stage, success now, at its best and evaluated, and minutes."""
    from reflectrl.report.listing import print_runs

    print_runs(runs)
