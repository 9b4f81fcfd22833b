"""The commands of ``reflectrl env``, which give an environment away."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.agents import Key, ServedAs, check_names, read_key
from reflectrl.cli.envs import read_options
from reflectrl.cli.shared import Host, Port, complete_env
from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput

env = typer.Typer(help="Serve or export an environment.", no_args_is_help=True)


@env.command("serve")
def serve(
    name: Annotated[str, typer.Argument(help="Registered environment.", autocompletion=complete_env)],
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
