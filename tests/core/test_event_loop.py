"""Coroutines run to their end from plain code and from code that an event loop runs, such as a cell of a notebook."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from contextvars import ContextVar
from typing import Any, TypeVar

import pytest

from reflectrl.core.stop import run_async

T = TypeVar("T")
Place = Callable[[Callable[[], T]], T]
NAMED: ContextVar[str] = ContextVar("NAMED", default="nobody")


def plainly(call: Callable[[], T]) -> T:
    return call()


def inside_asyncio_run(call: Callable[[], T]) -> T:
    async def main() -> T:
        return call()

    return asyncio.run(main())


def inside_a_loop_of_a_notebook(call: Callable[[], T]) -> T:
    """Call it where the loop leaves SIGINT to Python's own handler, as kernels do."""

    async def cell() -> T:
        return call()

    with closing(asyncio.new_event_loop()) as loop:
        return loop.run_until_complete(cell())


anywhere = pytest.mark.parametrize("place", [plainly, inside_asyncio_run, inside_a_loop_of_a_notebook])


@pytest.fixture(autouse=True)
def _sigterm_exits() -> Iterator[None]:
    """Install the handler of SIGTERM that the command line has."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    yield
    signal.signal(signal.SIGTERM, before)


@anywhere
def test_a_result_and_an_error_arrive_as_they_are(place: Place[Any]) -> None:
    error = KeyError("gone")

    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    assert place(lambda: run_async(double(4))) == 8
    with pytest.raises(KeyError) as caught:
        place(lambda: run_async(fail()))
    assert caught.value is error


@anywhere
def test_one_runner_keeps_its_loop(place: Place[Any]) -> None:
    async def look() -> tuple[Any, str]:
        return asyncio.get_running_loop(), NAMED.get()

    runner = asyncio.Runner()

    def call() -> list[tuple[Any, str]]:
        seen = []
        for name in ("first", "second"):
            token = NAMED.set(name)
            seen.append(run_async(look(), runner))
            NAMED.reset(token)
        return seen

    with runner:
        (first, one), (second, two) = place(call)
    assert (one, two) == ("first", "second")
    assert first is second


@anywhere
@pytest.mark.parametrize(("number", "ends"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_cancels_the_work_which_cleans_up_first(
    place: Place[Any], number: signal.Signals, ends: type[BaseException]
) -> None:
    said: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(0.2)  # the caller waits by now
            os.kill(os.getpid(), number)
            if place is inside_asyncio_run and number == signal.SIGINT:
                await asyncio.sleep(0.1)  # its first one asks for the end of the loop's task, which is waiting for this
                os.kill(os.getpid(), number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            said.append("clean")

    with pytest.raises(ends):
        place(lambda: run_async(work()))
    assert said == ["clean"]
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("reflectrl")] == []
