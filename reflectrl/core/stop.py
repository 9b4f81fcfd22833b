"""Graceful stops: the first Ctrl-C or SIGTERM requests a stop, which takes effect when the current step is finished."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from reflectrl.core.errors import WorkFailed

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Stop:
    """Request to stop, set by the handler of a signal."""

    def __init__(self) -> None:
        self.signal = 0
        """Number of the signal that requested the stop; 0 without a request."""

    @property
    def wanted(self) -> bool:
        """True if a stop was requested: finish and save the current work, and start no more."""
        return self.signal != 0


def tell_user(sentence: str) -> None:
    """Write a line to stderr, also from a signal handler; errors, such as a closed terminal, are ignored."""
    with contextlib.suppress(OSError, RuntimeError):
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def gentle_stops(tell: Callable[[str], None] = tell_user) -> Iterator[Stop]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one is handled immediately, as without this.

    The code in the block polls ``Stop.wanted``. At the end of the block the signal is raised again, so that the process
    ends as it would have without this. An ignored signal stays ignored, and outside of the main thread, the only one
    that may handle signals, nothing changes.

    Args:
        tell: called with a message for the user, from the signal handler.

    Raises:
        WorkFailed: a stop was requested, and the handler of the signal did not end the process.

    """
    stop = Stop()
    before: dict[signal.Signals, _Handler] = {}

    def request(number: int, _: FrameType | None) -> None:
        if stop.wanted:
            _restore(before)
            signal.raise_signal(number)
            return
        stop.signal = number
        tell(
            f"{signal.Signals(number).name}: finishing the step that is under way and writing a checkpoint, from which "
            "the same command continues; once more stops at once."
        )

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None: not installed from Python, so it could not be restored
                before[number] = handler
    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        _restore(before)
    if stop.wanted:
        signal.raise_signal(stop.signal)
        raise WorkFailed(
            f"stopped by {signal.Signals(stop.signal).name}; the same command continues from the checkpoint."
        )


def _restore(handlers: dict[signal.Signals, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
