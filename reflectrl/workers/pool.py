"""``WorkerPool``: environments in worker processes, which may crash or stall without ending the run.

A ``WorkerEnv`` is played like any other environment, with the same texts, rewards and infos.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.registry import env_path
from reflectrl.workers.env import WorkerEnv, gather
from reflectrl.workers.failures import Failures
from reflectrl.workers.limits import WorkerLimits
from reflectrl.workers.process import WorkerProcess
from reflectrl.workers.protocol import Make, need_plain


class WorkerPool(Failures):
    """A bounded set of processes that host environments; use it as a context, or close it.

    Args:
        workers: number of processes; never more than the machine has cores.
        limits: deadline, memory and number of failures of all environments together. ``on_failure="replay"`` replays
            the episode of a failed environment up to its last state; ``"drop"`` raises ``EpisodeFailed``, and a rollout
            leaves the episode out.

    Raises:
        InvalidInput: no workers.

    """

    def __init__(self, workers: int, limits: WorkerLimits = WorkerLimits()) -> None:  # noqa: B008 - frozen
        if workers < 1:
            raise InvalidInput(f"workers={workers} was given; expected 1 or more processes.")
        super().__init__(limits)
        self.recycled = 0
        """Number of processes replaced so far because of their memory, which is no failure."""
        self._numbers = itertools.count()
        self._workers = [WorkerProcess(limits.max_memory_mb) for _ in range(min(workers, os.cpu_count() or 1))]
        self._end = weakref.finalize(self, _end, self._workers)  # at the latest when the interpreter exits

    def make(self, name: str, options: Mapping[str, Any], count: int) -> list[WorkerEnv]:
        """Create ``count`` environments ``name``, spread over the processes.

        Raises:
            InvalidInput: unknown name or options, options that are not plain values, or a class that worker processes
                cannot import.
            WorkFailed: the environments cannot be created.

        """
        need_plain(options, f"environment {name!r}")
        make, total = Make(name, options, env_path(name)), len(self._workers)
        numbers = [next(self._numbers) for _ in range(count)]
        envs = [WorkerEnv(self, self._workers[number % total], number, make) for number in numbers]
        made = [env.pend(make) for env in envs]
        gather(made)
        for env, pending in zip(envs, made, strict=True):
            env.open(pending.answer())
        return envs

    def close(self) -> None:
        """End all processes; the environments cannot be used any more."""
        self._end()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        worker.closed = True
    for worker in workers:
        worker.stop()
