"""Output of commands to the terminal in plain text; ``screen`` prints episodes."""

from __future__ import annotations

import io
import sys

from reflectrl.core.text import visible


def any_text() -> None:
    """Replace characters that the terminal's encoding lacks, on input and output, instead of failing on them."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def say(text: str = "", *, end: str = "\n") -> None:
    """Print a result to stdout, with control characters made visible."""
    print(visible(text), end=end, flush=True)


def warn(text: str, *, end: str = "\n") -> None:
    """Print a message to stderr, with control characters made visible."""
    print(visible(text), end=end, file=sys.stderr)
