"""The commands on runs: report, watch, compare, runs, and audits of raters and reflectors."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Annotated, Literal

import typer

from reflectrl.cli.agents import ServedAs, check_names
from reflectrl.cli.shared import Host, Port, RunFolder, RunFolders, TextOrJson, complete_run
from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput


def audit_rater(
    run: RunFolder,
    output: TextOrJson = "text",
) -> None:
    """Compare a rater's ratings with the environment's truth: precision, recall, rank correlation, and by level."""
    from reflectrl.report.audit import as_json, audit, print_audit

    found = audit(run)
    if output == "json":
        say(as_json(found))
    else:
        print_audit(found)


def audit_reflector(
    run: RunFolder,
    output: TextOrJson = "text",
) -> None:
    """Compare a reflector's words with the expert's: how often they are right, and what follows where they are not."""
    from reflectrl.report.judged import as_json, audit_reflector, print_reflector

    found = audit_reflector(run)
    if output == "json":
        say(as_json(found))
    else:
        print_reflector(found)


def check_server(
    run: RunFolder,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Number of prompts.")] = 64,
) -> None:
    """Compare the words of a run's players behind servers with those of the same models in this process."""
    from reflectrl.pipeline.check_server import check_server

    for each in check_server(run, prompts):
        say(each.text)


def train_rater(
    run: RunFolder,
    out: Annotated[Path, typer.Option("--out", help="Folder of the rater, for players.rater.model.name.")],
    model: Annotated[str, typer.Option(help="Base model: builtin/nano, or a name as in model.name.")] = "builtin/nano",
    max_length: Annotated[int, typer.Option(min=32, help="Longest prompt, in tokens.")] = 512,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of 16 episodes each.")] = 300,
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Peak learning rate.")] = 1e-3,
) -> None:
    """Fine-tune a small model on the ratings of a run's recorded episodes, to replace a rater."""
    from reflectrl.pipeline.console import Reporter
    from reflectrl.pipeline.train_rater import train_rater

    with Reporter().stage("train-rater") as advance:
        done = train_rater(
            run,
            out,
            model=model,
            max_length=max_length,
            steps=steps,
            learning_rate=learning_rate,
            advance=lambda step, total, loss: advance(step, total, f"loss {loss:.3f}"),
        )
    say(
        f"{out}: trained on {done.rows} rated episodes; agrees with the ratings of {done.agreeing} of {done.held_out} "
        "held-out ones"
    )


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
    follow: Annotated[bool, typer.Option("--watch", help="Show them until Ctrl-C, as they change.")] = False,
) -> None:
    """List run folders: stage and how far it is, minutes left, success now, at its best and evaluated, and cost."""
    from reflectrl.report.terminal import print_runs, watch_runs

    (watch_runs if follow else print_runs)(runs)


def watch(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN", help="Run folders, or folders that hold some; default: runs.", autocompletion=complete_run
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8090,
    served_as: ServedAs = None,
) -> None:
    """Serve the report's page until Ctrl-C: it follows runs while they train, also those that begin later.

    No key protects it, since browsers send none for a page: to others, show it through a proxy with a login.
    """
    check_names(served_as or ())
    from reflectrl.report.watch import watch as serve

    serve(runs or [Path("runs")], host=host, port=port, served_as=served_as or (), ready=say)


def report(
    runs: RunFolders,
    out: Annotated[
        Path | None, typer.Option("--out", help="The HTML file; report.html in the run, or here for several runs.")
    ] = None,
    episode: Annotated[
        bool, typer.Option("--episode", help="Also print a task that the first run lost before RLFT and won after it.")
    ] = False,
) -> None:
    """Print the runs' table and a verdict, and write their HTML report."""
    absent = [str(run) for run in runs if not run.is_dir()]
    if absent:
        raise InvalidInput(f"no run folder is at {', '.join(absent)}; expected folders that 'reflectrl run' has made.")
    gc.disable()  # the collector would go through all that is read again and again: a fifth of the time
    try:
        from reflectrl.report import report as write

        say(f"report: {write(runs, out, episode=episode)}")
    finally:
        gc.enable()
