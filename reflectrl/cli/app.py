"""All commands, gathered into one typer application."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer
import typer.core

import reflectrl
from reflectrl.cli import agents, doctor, env_commands, envs, explore, play, recipes, reports, stage_commands
from reflectrl.cli.terminal import say

UsageError = cast(
    type[typer.BadParameter], next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
)
"""Base class of the errors for a command, option or argument that cannot be parsed; typer does not export it."""


class GroupedCommands(typer.core.TyperGroup):
    """Lists commands under the headings of their ``rich_help_panel``, in plain text, where typer itself needs rich."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - types that typer does not export
        """Write one section a heading, in the order in which the headings were first used."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            sections.setdefault(heading, []).append((name, command.get_short_help_str(limit=200)))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=12)


# A traceback means a bug in this library, so it is shown as Python shows it.
app = typer.Typer(
    help="Small language models become agents: two-player online reinforcement learning (Reflect-RL).",
    cls=GroupedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
STAGES, RESULTS, AGENTS, SETUP = "Stages of a run", "Results", "Playing and sharing", "Environments and recipes"
app.command("train", rich_help_panel=STAGES)(stage_commands.train)
app.command("run", rich_help_panel=STAGES)(stage_commands.run)
app.command("tune", rich_help_panel=STAGES)(stage_commands.tune)
app.command("gen-data", rich_help_panel=STAGES)(stage_commands.gen_data)
app.command("sft", rich_help_panel=STAGES)(stage_commands.sft)
app.command("rlft", rich_help_panel=STAGES)(stage_commands.rlft)
app.command("eval", rich_help_panel=STAGES)(stage_commands.evaluate)
app.command("claims", rich_help_panel=STAGES)(stage_commands.claims)
app.command("report", rich_help_panel=RESULTS)(reports.report)
app.command("watch", rich_help_panel=RESULTS)(reports.watch)
app.command("compare", rich_help_panel=RESULTS)(reports.compare)
app.command("runs", rich_help_panel=RESULTS)(reports.list_runs)
app.command("audit-rater", rich_help_panel=RESULTS)(reports.audit_rater)
app.command("audit-reflector", rich_help_panel=RESULTS)(reports.audit_reflector)
app.command("check-server", rich_help_panel=RESULTS)(reports.check_server)
app.command("train-rater", rich_help_panel=AGENTS)(reports.train_rater)
app.command("play", rich_help_panel=AGENTS)(play.play)
app.command("explore", rich_help_panel=AGENTS)(explore.explore)
app.command("serve", rich_help_panel=AGENTS)(agents.serve)
app.command("export", rich_help_panel=AGENTS)(agents.export)
app.add_typer(agents.data, name="data", rich_help_panel=AGENTS)
app.add_typer(recipes.recipes, name="recipes", rich_help_panel=SETUP)
app.add_typer(recipes.models, name="models", rich_help_panel=SETUP)
app.command("estimate", rich_help_panel=SETUP)(stage_commands.estimate)
app.command("check-env", rich_help_panel=SETUP)(envs.check)
app.add_typer(env_commands.env, name="env", rich_help_panel=SETUP)
app.command("new-env", rich_help_panel=SETUP)(envs.new_env)
app.command("doctor", rich_help_panel="Installation")(doctor.doctor)


@app.command(rich_help_panel="Installation")
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
