"""Hides other libraries' warnings, so that the terminal shows lines of this program only."""

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
    "matplotlib",  # a new home has no font cache yet
    "peft",
    "torch",
    "transformers",
    "trl",
)
"""Libraries whose warnings, meant for programmers, are hidden; their errors are shown."""


def hush_libraries() -> None:
    """Hide the warnings of ``LIBRARIES``, and Python's own unless the user asks for them (``PYTHONWARNINGS``)."""
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # read at the import of transformers
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
