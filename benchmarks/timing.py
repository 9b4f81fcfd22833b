"""Common parts of the engine's benchmarks: contenders timed in turn, and memory in a separate process."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

Call = Callable[[], Any]
Times = Mapping[str, Sequence[float]]
"""Processor seconds of each contender in each round: those of all threads of this process, without workers."""


def race(contenders: Mapping[str, Call], rounds: int, *, warm_up: bool = True) -> Times:
    """Time the contenders in turn (A B A B ...), so that other load on the machine affects all alike.

    The first round is a warm-up that is not counted, unless ``warm_up`` is false, as for slow contenders.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds + warm_up):
        for name, call in contenders.items():
            start = time.process_time()
            call()
            seconds[name].append(time.process_time() - start)
    return {name: each[warm_up:] for name, each in seconds.items()}


def times_as_fast(times: Times, of: str, than: str) -> float:
    """Return the speed of ``of`` relative to ``than``: the median over rounds of the ratio within a round."""
    return median(slow / fast for slow, fast in zip(times[than], times[of], strict=True))


def peak_memory(prepare: Callable[[], Call]) -> int:
    """Return the bytes by which a call raises the peak memory of a new process.

    The call is what ``prepare`` returns, and runs once. Memory that ``prepare`` takes does not count.

    Args:
        prepare: a function of a module, or a ``functools.partial`` of one, because the new process imports it.

    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_prepared_growth, prepare).result()


def _prepared_growth(prepare: Callable[[], Call]) -> int:
    return memory_growth(prepare())


def memory_growth(call: Call) -> int:
    """Return the bytes by which ``call`` raises the peak memory of this process."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux forgets the earlier peak
    before = _kilobytes("VmRSS")
    call()
    return 1024 * (_kilobytes("VmHWM") - before)


def _kilobytes(name: str) -> int:
    """Return ``VmRSS``, the resident memory, or ``VmHWM``, its peak, in kilobytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
