"""Warnings of other libraries are not shown, but their errors are."""

from __future__ import annotations

import subprocess
import sys

SAYING = """
import logging
from reflectrl.cli.quiet import hush_libraries
hush_libraries()
logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
logger.warning("Failed to load CPU gemm_4bit_forward")
logger.error("no such device")
"""


def test_warnings_of_the_modules_of_other_libraries_are_hidden() -> None:
    done = subprocess.run([sys.executable, "-c", SAYING], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("", "no such device\n")
