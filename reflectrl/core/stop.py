"""Stops by signals: of the step that is under way (``gentle_stops``), and of a coroutine (``run_async``)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import FrameType
from typing import Any, Generic, TypeVar

from reflectrl.core.errors import WorkFailed

_Handler = Callable[[int, FrameType | None], Any] | int | None


class Stop:
    """Request to stop, set by the handler of a signal, and the time by which training is to end."""

    def __init__(self) -> None:
        self.signal = 0
        """Number of the signal that requested the stop; 0 without a request."""
        self.deadline = math.inf
        """Reading of ``time.monotonic`` from which training ends, before its bound."""
        self.least = 0
        """Number of steps or iterations that are made even later."""

    @property
    def wanted(self) -> bool:
        """True if a stop was requested: finish and save the current work, and start no more."""
        return self.signal != 0

    def late(self, done: int) -> bool:
        """Return whether training should end after ``done`` steps or iterations, as its time is up."""
        return done >= self.least and time.monotonic() > self.deadline


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


T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T], runner: asyncio.Runner | None = None) -> T:
    """Return the result of ``work``; a SIGTERM that would end the process cancels ``work`` first, as SIGINT does.

    The command line's SIGTERM handler raises SystemExit. Raised inside an event loop, it would end whichever task is
    running, and the loop would report an exception that was never retrieved.

    Where an event loop is running already, as in a notebook, ``work`` runs in another thread, because asyncio refuses a
    loop inside a loop. The running loop waits.

    Args:
        work: the coroutine to run, which sees the context variables of the caller.
        runner: the runner of the event loop to use; a new one if absent.

    Raises:
        SystemExit: a signal handler raised it; it is raised again once ``work`` has cleaned up.
    """
    watched = _Watched(work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(watched, runner)
    thread = ThreadPoolExecutor(1, "reflectrl")
    try:
        return thread.submit(copy_context().run, _run, watched, runner).result()
    except BaseException:  # the work's own, or a signal's, which is handled here
        watched.cancel()
        raise
    finally:
        thread.shutdown()  # waits for the end of the work; a second signal takes effect immediately


class _Watched(Generic[T]):
    """A coroutine that can be cancelled from signal handlers and other threads."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._unwanted = False

    async def run(self) -> T:
        self._task = asyncio.current_task()
        if self._unwanted and self._task is not None:
            self._task.cancel()
        return await self._work

    def cancel(self) -> None:
        self._unwanted = True
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed, since it is done
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)  # also wakes a loop that waits


def _run(watched: _Watched[T], runner: asyncio.Runner | None) -> T:
    """Run a coroutine in a thread without a running loop."""
    if runner is None:
        with asyncio.Runner() as own:
            return _run(watched, own)
    before, context = signal.getsignal(signal.SIGTERM), copy_context()
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        return runner.run(watched.run(), context=context)
    exits: list[SystemExit] = []

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            before(number, frame)
        except SystemExit as error:
            if exits:
                raise  # a second signal takes effect immediately
            exits.append(error)
            watched.cancel()

    signal.signal(signal.SIGTERM, handle)
    try:
        return runner.run(watched.run(), context=context)
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:  # ``work`` may have installed another handler
            signal.signal(signal.SIGTERM, before)
        if exits:
            raise exits[0] from None
