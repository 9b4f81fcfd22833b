"""The command line: parse, import what the command needs, one call. ``reflectrl --help`` shows it."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys

from reflectrl.cli.terminal import hush_libraries
from reflectrl.core import ReflectRLError
from reflectrl.core.foreign import message_of

TELEMETRY = {"HF_HUB_DISABLE_TELEMETRY": "1", "GRADIO_ANALYTICS_ENABLED": "False", "WANDB_ERROR_REPORTING": "false"}
"""Environment variables that disable the telemetry of libraries, unless the user has set them."""

_PATHS = {
    errno.ENAMETOOLONG: "it is longer than the file system allows",
    errno.EACCES: "there is no permission to read or write it",
    errno.ENOTDIR: "a part of it is a file and not a folder",
    errno.EROFS: "its file system is read-only",
}
"""Errors of the system for which a path that was given is to blame."""


def main() -> None:
    """Run the command line; an expected error ends it with one sentence and an exit code."""
    for name, off in TELEMETRY.items():
        os.environ.setdefault(name, off)
    hush_libraries()
    # as an exception, so that temporary files are removed
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    from reflectrl.cli.app import UsageError, app
    from reflectrl.cli.terminal import any_text, warn

    any_text()
    try:
        code = app(prog_name="reflectrl", standalone_mode=False)
    except ReflectRLError as error:
        warn(f"error: {message_of(error)}")  # an environment may have raised a class of its own
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _PATHS:
            raise
        warn(f"error: {error.filename} cannot be used: {_PATHS[error.errno]}; give another path.")
        sys.exit(2)
    except UsageError as error:  # its message quotes user input
        said = io.StringIO()
        error.show(said)
        warn(said.getvalue(), end="")
        sys.exit(error.exit_code)
    sys.exit(code if isinstance(code, int) else 0)
