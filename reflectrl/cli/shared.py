"""Arguments and options that several commands have, their completion, and rules for options that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from reflectrl.core import InvalidInput


def complete_recipe(incomplete: str) -> list[str]:
    """Return the shipped recipes whose names begin with ``incomplete``; the shell itself adds files."""
    from reflectrl.config import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Return the run folders in ``runs`` of the working directory whose paths begin with ``incomplete``."""
    from reflectrl.core.run_files import run_folders

    return [path for path in map(str, run_folders(Path("runs"))) if path.startswith(incomplete)]


def complete_run_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the run folders in ``--runs`` that begin with ``incomplete``."""
    from reflectrl.core.run_files import run_folders

    return [
        path.name for path in run_folders(Path(ctx.params.get("runs") or "runs")) if path.name.startswith(incomplete)
    ]


def complete_env(incomplete: str) -> list[str]:
    """Return the registered environments whose names begin with ``incomplete``."""
    from reflectrl.core import env_names

    return [name for name in env_names() if name.startswith(incomplete)]


ENV_NAMES = "package.module:Class, a name of 'check-env --list', or gymnasium:, openenv: or verifiers:NAME."
"""Help on what names an environment."""

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", autocompletion=complete_run)]
RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders.", autocompletion=complete_run)]
TextOrJson = Annotated[Literal["text", "json"], typer.Option("--format", help="Form of the output.")]
RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe",
        "-r",
        help="Shipped recipe (see 'reflectrl recipes ls') or YAML file.",
        autocompletion=complete_recipe,
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE", help="Changes to the recipe, e.g. rlft.gamma=0.9.")
]

AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="HOST",
        help="Server that the players of a folder from elsewhere may send states to; repeatable.",
    ),
]

Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free one.")]


def check_belongs(option: str, owner: str, *, given: bool, owner_given: bool) -> None:
    """Raise ``InvalidInput`` if ``option`` was given without the option that it belongs to."""
    if given and not owner_given:
        raise InvalidInput(f"{option} was given without {owner}, to which it belongs; give both or none.")


def only_one(options: Mapping[str, bool], otherwise: str = "") -> str | None:
    """Return the option that was given, ``None`` without one; ``otherwise`` says what happens then.

    Raises:
        InvalidInput: several were given.
    """
    given = [name for name, is_given in options.items() if is_given]
    if len(given) > 1:
        raise InvalidInput(f"{' and '.join(given)} were given; expected one of them{otherwise}.")
    return given[0] if given else None
