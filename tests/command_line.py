"""Helpers that run ``reflectrl`` in this process as the console script does, without a cold start."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import sys
import warnings
from dataclasses import dataclass

import pytest

from reflectrl.cli import main
from reflectrl.cli.terminal import LIBRARIES


@dataclass(frozen=True)
class Done:
    """The exit code and output of a command that has ended."""

    code: int
    out: str
    err: str


def reflectrl(*arguments: object, typed: str = "") -> Done:
    """Run the command line on ``arguments`` with ``typed`` as its input, and undo its changes to the process."""
    out, err = io.StringIO(), io.StringIO()
    levels = {name: logging.getLogger(name).level for name in LIBRARIES}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.MonkeyPatch.context() as patch,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setattr(sys, "argv", ["reflectrl", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.StringIO(typed))
            try:
                main()
            except SystemExit as end:
                return Done(end.code if isinstance(end.code, int) else 1, out.getvalue(), err.getvalue())
    finally:
        signal.signal(signal.SIGTERM, handler)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
    raise AssertionError("main returned")


def refused(*arguments: object) -> str:
    """Run a command that must be refused (exit code 2, one message, no output, no traceback); returns its sentence."""
    done = reflectrl(*arguments)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    return done.err
