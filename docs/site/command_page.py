"""The page of all commands, from the command line itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from reflectrl.cli.app import app

HEAD = """# Commands

Every command, as `reflectrl COMMAND --help` prints it; this page is made from the same source. Exit codes: 0 when all
went well, 1 when something broke at work, 2 for input that cannot be used, 130 and 143 when Ctrl-C or SIGTERM stopped
it. An error is a sentence on standard error.
"""


def command_page() -> str:
    """The Markdown."""
    root = typer.main.get_command(app)
    return "\n".join([HEAD, *_command(root, "reflectrl", None)])


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    """One command and those below it."""
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    if parent is not None:
        yield f"## `{context.command_path}` {{#{context.command_path.removeprefix('reflectrl ').replace(' ', '-')}}}\n"
        yield f"{_text(command.help or '')}\n"
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield f"```text\n{usage}\n```\n"
    rows = [_row(*record) for param in command.params if (record := param.get_help_record(context))]
    if parent is not None and rows:
        yield "\n".join(["| Argument or option | What it does |", "|---|---|", *rows, ""])
    for below in getattr(command, "commands", {}).values():
        if not below.hidden:
            yield from _command(below, below.name, context)


def _row(names: str, words: str) -> str:
    # a bar would end the cell
    return f"| `{names.replace('|', chr(92) + '|')}` | {_text(words)} |"


def _text(text: str) -> str:
    """Plain words: nothing in them is Markdown, apart from names between backticks."""
    words = " ".join(text.split()).replace("``", "`")
    return "".join(
        part if part.startswith("`") else re.sub(r"([\\*_\[\]<>|#])", r"\\\1", part)
        for part in re.split(r"(`[^`]*`)", words)
    )
