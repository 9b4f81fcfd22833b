"""``WorkerPool``: environments in worker processes, which may crash or stall without ending the run.

A ``WorkerEnv`` is played like any other environment, with the same texts, rewards and infos.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import Border, EnvFailed, EpisodeFailed, InvalidInput, WorkFailed, place_of
from reflectrl.core.registry import env_path, make_env
from reflectrl.core.stop import tell_user
from reflectrl.rollout.process import WorkerProcess
from reflectrl.rollout.protocol import Make, need_plain
from reflectrl.rollout.worker import WorkerEnv, gather


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """Limits of environments in worker processes or in this one, and the answer to a failure."""

    deadline_s: Annotated[float, Gt(0.0)] = 60.0
    """Maximum duration in seconds of a request to an environment. A worker process is then killed, which is a failure;
    in the main process (``workers: 0``), an alarm ends the step where ``on_failure`` is drop; else a line names it."""
    on_failure: Literal["replay", "drop"] = "replay"
    """Answer to a failure: replay the episode up to that step (in the main process, stop the work), or (in RLFT only)
    drop the episode."""
    max_failures: Annotated[int, Ge(0)] = 20
    """Number of failures that a stage tolerates."""
    max_memory_mb: Annotated[int, Ge(1)] | None = None
    """Resident memory of a worker process, in MB, above which the next episode begins in a new process; twice as much
    is a failure."""


class Failures:
    """Counter of failed requests to environments."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.failures = 0
        """Number of failed requests so far, repeated ones included."""

    def count_failure(self, sentence: str) -> None:
        """Count a failed request, which ``sentence`` describes.

        Raises:
            WorkFailed: there were too many.
        """
        self.failures += 1
        if self.failures > self.limits.max_failures:
            raise WorkFailed(
                f"environments failed {self.failures} times; the limit is {self.limits.max_failures}: {sentence}; "
                "fix the environment, or raise max_failures."
            )


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
        """Number of processes replaced so far because of their memory, which is not a failure."""
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


CHECK_INTERVAL_S = 1.0
"""Maximum seconds between two looks at how long a step takes."""


class LocalEnvs(Failures, Border):
    """Maker of environments in this process; use it as a context, or close it.

    With ``on_failure="drop"`` an environment that raises loses its episode (``EpisodeFailed``); otherwise the work ends
    with its error, since there is no new process in which to replay. With ``"drop"``, a step that outlasts the deadline
    loses its episode too: an alarm raises the error in it, if it runs in the main thread. What an alarm cannot end,
    such as code in C that does not return, and every such step without ``"drop"``, is reported once; interrupted code
    may leave locks held and engines between two states, with which not every work should go on.

    Args:
        limits: deadline, answer to failures and number of failures of all environments together.
        tell: called with a sentence about a step that hangs, from another thread.
    """

    def __init__(self, limits: WorkerLimits, tell: Callable[[str], None] = tell_user) -> None:
        super().__init__(limits)
        self._tell = tell
        self._inside: list[tuple[NatLangEnv, bool, float]] = []  # calls that have not returned, the outermost first
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None
        self._before: Any = None
        """Handler of alarms before ours; ``None`` while steps are not interrupted."""

    def make(self, name: str, options: Mapping[str, Any], count: int) -> list[NatLangEnv]:
        """Make ``count`` environments; raise ``InvalidInput`` as ``make_env`` does."""
        envs = [make_env(name, **options) for _ in range(count)]
        for env in envs:
            env._border = self
        ours = self.limits.on_failure == "drop" and threading.current_thread() is threading.main_thread()
        if ours and self._before is None and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
            self._before = signal.signal(signal.SIGALRM, self._late) or signal.SIG_DFL
        if self._watch is None:
            self._watch = threading.Thread(target=self._report_hangs, name="hanging steps", daemon=True)
            self._watch.start()
        return envs

    def enter(self, env: NatLangEnv, *, asked: bool) -> None:
        """Note that a method is called."""
        self._inside.append((env, asked, time.monotonic()))
        self._alarm(self.limits.deadline_s)

    def leave(self) -> None:
        """Note that the last method called has ended."""
        self._alarm(0.0)
        self._inside.pop()

    def _alarm(self, seconds: float) -> None:
        """Raise an alarm in so many seconds, unless the method was called by another one or in another thread."""
        main = threading.current_thread() is threading.main_thread()
        if self._before is not None and main and len(self._inside) == 1:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _late(self, _number: int, _frame: object) -> None:
        if self._inside:
            env, asked, _ = self._inside[0]
            sentence = (
                f"environment {env.name!r} did not answer within {self.limits.deadline_s:g} s (env.deadline_s), "
                f"{place_of(env, hints=asked)}"
            )
            self.count_failure(f"{sentence}; env.workers=1 or more isolates what cannot be interrupted here")
            raise EpisodeFailed(f"{sentence}; the episode is dropped.")

    def failed(self, error: EnvFailed) -> WorkFailed:
        """Count a failure; return the error that drops the episode, or the one that ends the work."""
        if self.limits.on_failure != "drop":
            return error
        sentence = f"{error.where}: it {error.what}"
        self.count_failure(sentence)
        return EpisodeFailed(f"{sentence}; the episode is dropped.")

    def close(self) -> None:
        """End the watch, and the alarms."""
        if self._before is not None:
            signal.signal(signal.SIGALRM, self._before)
            self._before = None
        self._closed.set()
        if self._watch is not None:
            self._watch.join()

    def __enter__(self) -> LocalEnvs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _report_hangs(self) -> None:
        deadline_s, told = self.limits.deadline_s, None
        while not self._closed.wait(min(CHECK_INTERVAL_S, deadline_s / 4)):
            patience_s = deadline_s if self._before is None else 2 * deadline_s  # an alarm comes first
            for call in self._inside[:1]:
                env, asked, since = call
                if call is not told and time.monotonic() - since >= patience_s:
                    told = call
                    self._tell(
                        f"environment {env.name!r} has not answered for {patience_s:g} s (env.deadline_s), "
                        f"{place_of(env, hints=asked)}. Nothing can stop it in this process: if it hangs, end the "
                        "command and repeat it with env.workers=1 or more, which kills a worker process that is late "
                        "and goes on."
                    )
