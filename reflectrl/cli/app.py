"""All commands, gathered into one typer application, and those of ``reflectrl env``, which give one away."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, cast

import typer
import typer.core

import reflectrl
from reflectrl.cli import agents, doctor, envs, explore, play, recipes, reports, stage_commands
from reflectrl.cli.agents import Key, ServedAs, check_names, read_key
from reflectrl.cli.envs import read_options
from reflectrl.cli.shared import ENV_NAMES, Host, Port, complete_env
from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput

env = typer.Typer(help="Serve or export an environment.", no_args_is_help=True)


@env.command("serve")
def serve(
    name: Annotated[str, typer.Argument(help=ENV_NAMES, autocompletion=complete_env)],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of the environment, e.g. stage=pickup.")
    ] = None,
    host: Host = "127.0.0.1",
    served_as: ServedAs = None,
    port: Port = 8000,
    api_key_env: Key = None,
    sessions: Annotated[int, typer.Option("--sessions", min=1, help="Maximum number of clients at a time.")] = 8,
) -> None:
    """Serve an environment to clients of OpenEnv until Ctrl-C."""
    if find_spec("openenv") is None:
        raise InvalidInput("serving an environment needs the package openenv; run pip install 'reflectrl[openenv]'.")
    check_names(served_as or ())
    key = None if api_key_env is None else read_key(api_key_env)
    given = read_options(options or [])
    from reflectrl.share.server import serve_env

    serve_env(name, given, host=host, port=port, key=key, sessions=sessions, served_as=served_as or (), ready=say)


@env.command("export")
def export(
    name: Annotated[str, typer.Argument(metavar="ENV", help="Environment.", autocompletion=complete_env)],
    verifiers: Annotated[Path, typer.Option("--verifiers", metavar="FOLDER", help="New folder for the package.")],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Options of the environment, e.g. stage=pickup.")
    ] = None,
) -> None:
    """Write a package with which verifiers plays, evaluates and trains on an environment."""
    if find_spec("verifiers") is None:
        raise InvalidInput(
            "the package needs verifiers, which is not installed; run pip install 'reflectrl[verifiers]'."
        )
    from reflectrl.share.verifiers_package import export_env

    project, note = export_env(name, read_options(options or []), verifiers)
    place = shlex.quote(str(verifiers if verifiers.is_absolute() else f"./{verifiers}"))
    say(f"{verifiers}: {project}, an environment of verifiers.")
    if note:
        say(note)
    say("\nNext:")
    say(f"  pip install -e {place}")
    say(f"  vf-eval {project} -m MODEL -b http://127.0.0.1:8000/v1")


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
app.add_typer(env, name="env", rich_help_panel=SETUP)
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
