"""Ends of a process at exact moments: at the n-th time that it begins to write a certain file."""

from __future__ import annotations

import os
import sys
from typing import Any

from warm_processes import command_line


def end_at(file: str, count: int, number: int) -> None:
    """Send this process a signal when a file whose path ends with ``file`` is opened for writing, or moved into place.

    It happens at the ``count``-th time, before anything of it is on the disk.
    """
    left = count

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event == "os.rename":
            path = arguments[1]
        elif event == "open" and isinstance(arguments[1], str) and arguments[1][:1] in "aw":
            path = arguments[0]
        else:
            return
        if isinstance(path, str | os.PathLike) and str(path).endswith(file):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    sys.addaudithook(watch)


def command_that_ends(file: str, count: int, number: int, *arguments: str) -> None:
    """The command line, in a process that gets a signal at that moment."""
    end_at(file, count, number)
    command_line(*arguments)
