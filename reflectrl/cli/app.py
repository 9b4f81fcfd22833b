"""All commands, gathered into one typer application."""

from __future__ import annotations

from typing import Annotated, cast

import typer

import reflectrl
from reflectrl.cli import doctor, envs, explore, export, new_env, play, plot, recipes, reports, serve, stages
from reflectrl.cli.terminal import say

UsageError = cast(
    type[typer.BadParameter], next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
)
"""What is raised for a command, option or argument that cannot be understood; typer has no name for it."""

# A traceback means a bug in this library, so it is shown as Python shows it.
app = typer.Typer(
    help="Small language models become agents: two-player online reinforcement learning (Reflect-RL).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(stages.run)
app.command("gen-data")(stages.gen_data)
app.command("sft")(stages.sft)
app.command("rlft")(stages.rlft)
app.command("eval")(stages.evaluate)
app.command("report")(reports.report)
app.command("plot")(plot.plot)
app.command("explore")(explore.explore)
app.command("play")(play.play)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.add_typer(recipes.app, name="recipes")
app.command("new-env")(new_env.new_env)
app.command("check-env")(envs.check)
app.command("doctor")(doctor.doctor)


@app.command()
def version() -> None:
    """Print the version."""
    say(f"reflectrl {reflectrl.__version__}")


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
