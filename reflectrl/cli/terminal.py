"""Output of commands to the terminal; the only module of the command line that prints."""

from __future__ import annotations

import io
import sys

from reflectrl.core.text import visible


def any_text() -> None:
    """Let the terminal show and the keyboard type any text: what it cannot is replaced, and no reason to stop."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str = "", *, end: str = "\n") -> None:
    """Print a result; names of files, tasks and runs in it do nothing to the terminal."""
    print(visible(text), end=end, flush=True)


def warn(text: str, *, end: str = "\n") -> None:
    """Print something that is no result, to stderr."""
    print(visible(text), end=end, file=sys.stderr)
