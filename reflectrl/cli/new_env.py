"""The new-env command: the skeleton of an environment in a package of its own."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.terminal import say


def new_env(
    name: Annotated[str, typer.Argument(help="Lower-case letters, digits and underscores, e.g. treasure_map.")],
    out: Annotated[Path | None, typer.Option(help="New folder for the package; default: ./NAME.")] = None,
) -> None:
    """Write a package with a working environment to start from.

    It holds the environment, its expert, tests and a recipe, and can be installed as it is.
    """
    from reflectrl.skeleton import write_package

    folder = out or Path(name)
    for path in write_package(name, folder):
        say(str(path))
    # with the dot, a mistyped command cannot install a package of the same name from an index
    place = shlex.quote(str(folder if folder.is_absolute() else f"./{folder}"))
    say("\nNext:")
    say(f"  pip install -e {place}")
    say(f"  reflectrl check-env {name}")
    say(f"  reflectrl run --recipe {shlex.quote(str(folder / 'recipes' / 'nano.yaml'))}")
