"""Graceful stops: the first Ctrl-C or SIGTERM requests one, granted when the work under way is finished."""

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
        """Number of the signal that requested the stop; 0 if there was none."""

    @property
    def wanted(self) -> bool:
        """True if the work under way is to be finished and saved, and no other begun."""
        return self.signal != 0


def tell_user(sentence: str) -> None:
    """Write a line to stderr, even in the middle of another line, or to a terminal that is gone."""
    with contextlib.suppress(OSError, RuntimeError):
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()


@contextlib.contextmanager
def gentle_stops(tell: Callable[[str], None] = tell_user) -> Iterator[Stop]:
    """Turn the first SIGINT or SIGTERM into a request to stop; a second one acts at once as it would have before.

    The code in the block looks at ``Stop.wanted`` now and then. At the end of the block the signal is raised again, so
    that the process ends as it would have ended. A signal that is ignored stays so, and outside of the main thread,
    which alone may handle signals, nothing changes.

    Args:
        tell: called with a sentence for the user, in the middle of the work.

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
            "the same command goes on; once more stops at once."
        )

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):  # None is one of another language, and could not be put back
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
            f"stopped by {signal.Signals(stop.signal).name}; the same command goes on from the checkpoint."
        )


def _restore(handlers: dict[signal.Signals, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
