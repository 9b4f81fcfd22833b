"""The export command: the agent of a run, as a folder or a repository of the hub that others can use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path | None, typer.Option("--out", help="The new folder; export in the run if absent.")] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Merge adapters into their base; a base on this machine only always is.")
    ] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option("--push-to-hub", metavar="OWNER/NAME", help="Also upload it; needs HF_TOKEN or a login."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository of --push-to-hub private, if it is new.")
    ] = False,
) -> None:
    """Write a run's agent for others: weights, tokenizer, model card and an example."""
    if private and push_to_hub is None:
        raise InvalidInput("--private was given without --push-to-hub, to which it belongs; give both or none.")
    if not run.is_dir():
        raise InvalidInput(f"no run folder is at {run}; expected a folder that 'reflectrl run' has made.")
    from reflectrl.sharing.hub import check_push, push

    if push_to_hub is not None:
        check_push(push_to_hub)
    from reflectrl.sharing.export import export_run

    folder = export_run(run, out, merge=merge, tell=warn)
    say(f"export: {folder}")
    if push_to_hub is not None:
        say(f"hub: {push(folder, push_to_hub, private=private)}")
