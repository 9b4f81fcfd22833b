"""``run_async``: run a coroutine to its end, with a clean shutdown when a signal stops the process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T], runner: asyncio.Runner | None = None) -> T:
    """Return the result of ``work``; a SIGTERM that would end the process cancels ``work`` first, as SIGINT does.

    The command line's SIGTERM handler raises SystemExit. Raised inside an event loop, it would end whichever task is
    running, and the loop would report an exception that was never retrieved.

    Args:
        work: the coroutine to run.
        runner: the runner of the event loop to use; a new one if absent.

    Raises:
        SystemExit: a signal handler raised it; it is raised again once ``work`` has cleaned up.

    """
    if runner is None:
        with asyncio.Runner() as own:
            return run_async(work, own)
    before, loop = signal.getsignal(signal.SIGTERM), runner.get_loop()
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        return runner.run(work)
    tasks: list[asyncio.Task[Any] | None] = []
    exits: list[SystemExit] = []

    async def watched() -> T:
        tasks.append(asyncio.current_task())
        return await work

    def handle(number: int, frame: FrameType | None) -> None:
        try:
            before(number, frame)
        except SystemExit as error:
            if exits or not (tasks and tasks[0]):
                raise  # a second signal takes effect immediately
            exits.append(error)
            loop.call_soon_threadsafe(tasks[0].cancel)  # also wakes a loop that waits for the network

    signal.signal(signal.SIGTERM, handle)
    try:
        return runner.run(watched())
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:  # ``work`` may have installed another handler
            signal.signal(signal.SIGTERM, before)
        if exits:
            raise exits[0] from None
