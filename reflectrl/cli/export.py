"""The export command: a run's agent as a folder, or as a repository on the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reflectrl.cli.shared import RunFolder, check_belongs
from reflectrl.cli.terminal import say, warn
from reflectrl.core import InvalidInput


def export(
    run: RunFolder,
    out: Annotated[Path | None, typer.Option("--out", help="New folder; default: export in the run folder.")] = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Merge adapters into their base; always done for a base that others cannot get."),
    ] = False,
    push_to_hub: Annotated[
        str | None,
        typer.Option("--push-to-hub", metavar="OWNER/NAME", help="Upload the export; needs HF_TOKEN or a login."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository of --push-to-hub as a private one.")
    ] = False,
) -> None:
    """Write an agent's weights, tokenizer, model card and example."""
    check_belongs("--private", "--push-to-hub", given=private, owner_given=push_to_hub is not None)
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
