"""``run_async``: run a coroutine to its end, with a clean shutdown when a signal stops the process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import FrameType
from typing import Any, Generic, TypeVar

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
