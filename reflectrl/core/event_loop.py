"""``run_async``: run a coroutine to its end, or to a clean end by the signal that stops the process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from reflectrl.core.stop import handler_before

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
    with _cancelled_by_sigterm(runner.get_loop()) as stop:
        try:
            result = runner.run(stop.watch(work))
        except BaseException:
            if stop.raised is None:
                raise
            raise stop.raised from None
        if stop.raised is not None:
            raise stop.raised
        return result


class _Stop:
    """Exit that a signal requested while an event loop ran."""

    def __init__(self) -> None:
        self.raised: SystemExit | None = None
        self.task: asyncio.Task[Any] | None = None

    async def watch(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, awaited in a task that can be cancelled."""
        self.task = asyncio.current_task()
        return await work


@contextlib.contextmanager
def _cancelled_by_sigterm(loop: asyncio.AbstractEventLoop) -> Iterator[_Stop]:
    """Turn the SystemExit of the handler of SIGTERM into a cancellation; a second one is raised at once."""
    stop = _Stop()

    def handle(number: int, frame: FrameType | None, before: Callable[..., object]) -> None:
        try:
            before(number, frame)
        except SystemExit as error:
            if stop.raised is not None or stop.task is None:
                raise
            stop.raised = error
            loop.call_soon_threadsafe(stop.task.cancel)  # which wakes a loop that waits for the network

    with handler_before(signal.SIGTERM, handle):
        yield stop
