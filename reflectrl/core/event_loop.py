"""``run_async``: run a coroutine to its end, or to a clean end by the signal that stops the process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T], runner: asyncio.Runner | None = None) -> T:
    """Return the result of ``work``. A SIGTERM that would end the process cancels ``work`` first, as SIGINT does.

    The handler of the command line raises SystemExit. Raised in the middle of an event loop, that would leave whichever
    task is running, and the loop would complain of an exception that was never retrieved.

    Args:
        work: the coroutine to run.
        runner: the runner of the event loop to use; a new one if absent.

    Raises:
        SystemExit: by the handler of the signal, once ``work`` has cleaned up.

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
                raise  # a second one acts at once
            exits.append(error)
            loop.call_soon_threadsafe(tasks[0].cancel)  # which wakes a loop that waits for the network

    signal.signal(signal.SIGTERM, handle)
    try:
        return runner.run(watched())
    finally:
        if signal.getsignal(signal.SIGTERM) is handle:  # the code inside may have set one of its own
            signal.signal(signal.SIGTERM, before)
        if exits:
            raise exits[0] from None
