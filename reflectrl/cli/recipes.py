"""The recipes commands: list, show and copy what is shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput

app = typer.Typer(help="List, show and copy the shipped recipes.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="A name that 'reflectrl recipes ls' prints.")]


@app.command()
def ls() -> None:
    """One shipped recipe a line, with what it shows."""
    from reflectrl.config import load_recipe, recipe_names

    names = recipe_names()
    width = max(map(len, names), default=0)
    for name in names:
        say(f"{name:{width}}  {load_recipe(name).description}".rstrip())


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A shipped recipe or a YAML file.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE")] = None,
) -> None:
    """The whole recipe: what it extends, overrides and defaults filled in."""
    from reflectrl.config import dump_recipe, load_recipe

    say(dump_recipe(load_recipe(name, overrides or ())), end="")


@app.command()
def cp(
    name: Name,
    dest: Annotated[Path, typer.Argument(help="A new file, or a folder.")] = Path(),
) -> None:
    """Copy a shipped recipe to a file of your own; its 'extends' keeps working there."""
    from reflectrl.config import recipe_text

    text = recipe_text(name)
    path = dest / f"{name.rpartition('/')[2]}.yaml" if dest.is_dir() else dest
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InvalidInput(f"{path} exists already; choose another name or remove it.") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; choose another place.") from error
    say(str(path))
