"""Plain text output of commands, without other libraries' warnings; ``screen`` prints episodes."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings

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


LIBRARIES = (
    "accelerate",
    "bitsandbytes",  # which peft and transformers' Trainer import wherever it is installed
    "datasets",
    "huggingface_hub",
    "peft",
    "torch",
    "transformers",
    "trl",
)
"""Libraries whose warnings, meant for programmers, are hidden; their errors are shown."""
PROGRESS = {"PIP_QUIET": "1", "TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
"""Environment variables that disable the progress of downloads and conversions, unless the user has set them."""


def hush_libraries() -> None:
    """Hide the warnings of ``LIBRARIES``, and Python's own unless the user asks for them (``PYTHONWARNINGS``).

    Where the standard error is not a terminal, progress of other libraries and of pip is hidden, too.
    """
    if not sys.stderr.isatty():
        for variable, off in PROGRESS.items():
            os.environ.setdefault(variable, off)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read at the import of transformers
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
