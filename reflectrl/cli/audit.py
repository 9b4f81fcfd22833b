"""The command that compares a rater's ratings with how the episodes ended."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from reflectrl.cli.completion import complete_run
from reflectrl.cli.terminal import say


def audit_rater(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", autocompletion=complete_run)],
    output: Annotated[Literal["text", "json"], typer.Option("--format", help="Form of the tables.")] = "text",
) -> None:
    """Compare a rater's ratings with the environment's truth: precision, recall, rank correlation, and by level."""
    from reflectrl.report.audit import as_json, audit, print_audit

    found = audit(run)
    if output == "json":
        say(as_json(found))
    else:
        print_audit(found)
