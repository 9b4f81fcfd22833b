"""Hides other libraries' warnings and, outside a terminal, their progress; only lines of this program are shown."""

from __future__ import annotations

import logging
import os
import sys
import warnings

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

    Where the standard error is no terminal, progress of other libraries and of pip is hidden, too.
    """
    if not sys.stderr.isatty():
        for variable, off in PROGRESS.items():
            os.environ.setdefault(variable, off)
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read at the import of transformers
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
