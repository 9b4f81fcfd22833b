"""Common parts of the engine's benchmarks: contenders timed in turn, memory in a separate process, and FLOP counts."""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from arms import table
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

Call = Callable[[], Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Times:
    """Seconds of one contender in each round."""

    wall: tuple[float, ...]
    processor: tuple[float, ...]
    """Processor seconds of all threads of this process, without worker processes."""

    @property
    def work(self) -> tuple[float, ...]:
        """Seconds to compare: processor seconds, which other programs hardly change, or wall seconds with a GPU."""
        return self.wall if torch.cuda.is_available() else self.processor

    @property
    def seconds(self) -> float:
        """Median of ``work``."""
        return median(self.work)


def race(contenders: Mapping[str, Call], rounds: int = 5, *, warm_up: bool = True) -> dict[str, Times]:
    """Time the contenders in turn (A B A B ...), so that other load on the machine affects all alike.

    The first round is a warm-up that is not counted, unless ``warm_up`` is false, as for slow contenders.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds + warm_up):
        for name, call in contenders.items():
            seconds[name].append(clocked(call))
    return {name: Times(*zip(*pairs[warm_up:], strict=True)) for name, pairs in seconds.items()}


def clocked(call: Call) -> tuple[float, float]:
    """Return the wall and processor seconds of ``call``, including the work of a GPU."""
    _wait()
    wall, processor = time.perf_counter(), time.process_time()
    call()
    _wait()
    return time.perf_counter() - wall, time.process_time() - processor


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def times_as_fast(times: Mapping[str, Times], of: str, than: str) -> float:
    """Return the speed of ``of`` relative to ``than``: the median over rounds of the ratio within a round."""
    return median(slow / fast for slow, fast in zip(times[than].work, times[of].work, strict=True))


def ratio_table(times: Mapping[str, Times], than: str) -> str:
    """Return a Markdown table of each contender's medians and its speed relative to ``than``."""
    lines = [
        [name, milliseconds(took.wall), milliseconds(took.processor), f"**{times_as_fast(times, name, than):.2f}**"]
        for name, took in times.items()
    ]
    return table(["median milliseconds (smallest to largest)", "wall", "processor", f"times as fast as {than}"], lines)


def milliseconds(seconds: tuple[float, ...]) -> str:
    """Format the median, the minimum and the maximum in milliseconds."""
    middle, low, high = (f"{1e3 * value:,.3g}" for value in (median(seconds), min(seconds), max(seconds)))
    return f"{middle} ({low} to {high})"


# ---- memory ----------------------------------------------------------------------------------------------------------


def peak_memory(prepare: Callable[[], Call]) -> int:
    """Return the bytes by which a call raises the peak memory of a new process (or of its GPU).

    The call is what ``prepare`` returns, and runs once. Memory that ``prepare`` takes does not count.

    Args:
        prepare: a function of a module, or a ``functools.partial`` of one, because the new process imports it.

    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_prepared_growth, prepare).result()


def _prepared_growth(prepare: Callable[[], Call]) -> int:
    return memory_growth(prepare())


def memory_growth(call: Call) -> int:
    """Return the bytes by which ``call`` raises the peak memory of this process (or of its GPU)."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        _wait()
        return int(torch.cuda.max_memory_allocated() - before)
    # torch does not count memory on a CPU, but Linux does: this resets its record of the peak
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _kilobytes("VmRSS")
    call()
    return 1024 * (_kilobytes("VmHWM") - before)


def _kilobytes(name: str) -> int:
    """Return ``VmRSS``, the resident memory, or ``VmHWM``, its peak, in kilobytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


# ---- work ------------------------------------------------------------------------------------------------------------


def flops(call: Call) -> int:
    """Return the floating-point operations of matrix products in ``call``, with causal attention counted as full."""
    with flop_counter() as counter:
        call()
    return int(counter.get_total_flops())


def flop_counter() -> FlopCounterMode:
    """Return a context that counts floating-point operations, including those of attention on CPUs."""
    aten = torch.ops.aten
    known = {
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    }
    return FlopCounterMode(display=False, custom_mapping=known)


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


def matmul(
    rows: int = 2048,
    inner: int = 2048,
    columns: int = 2048,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> tuple[Call, int]:
    """Return a matrix product to compare with, and its floating-point operations.

    The factors are random, because GPUs multiply zeros faster.
    """
    left, right = (torch.rand(shape, device=device, dtype=dtype) for shape in ((rows, inner), (inner, columns)))
    return lambda: left @ right, 2 * rows * inner * columns


def share_of_peak(work: int, seconds: float, peak_work: int, peak_seconds: float) -> float:
    """Return the achieved operations per second as a fraction of those of the large matrix product."""
    return (work / seconds) / (peak_work / peak_seconds)
