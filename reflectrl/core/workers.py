"""``WorkerPool``: environments in worker processes, which may crash or stall without taking the work with them.

A ``WorkerEnv`` is played like any other environment, with the same texts, rewards and infos; several of them can be
stepped at the same time, from threads. A process that dies or stalls is started anew, and each of its environments
plays its own episode again before it is used next.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EpisodeFailed, InvalidInput, WorkFailed
from reflectrl.core.hosting import (
    AskHints,
    Close,
    Describe,
    ListTasks,
    Made,
    Make,
    Played,
    Request,
    Reset,
    Step,
)
from reflectrl.core.registry import env_path
from reflectrl.core.types import Hints, Observation, Outcome, Task
from reflectrl.core.worker_process import Broken, WorkerProcess

ATTEMPTS = 3
"""Times that a call is made before it is given up."""
START_S = 60.0
"""Making an environment may take so long, however short the deadline: a process starts and imports for it."""


class WorkerEnv(NatLangEnv):
    """An environment whose inside lives in a worker process; made by ``WorkerPool.make``.

    ``snapshot`` and ``restore`` are those of the base, by replay. ``np_random`` stays where the seed put it, so an
    episode that is begun without a seed after another one differs from the one that would be played in this process.
    """

    def __init__(self, pool: WorkerPool, worker: WorkerProcess, make: Make) -> None:
        self.pool = pool
        """Where it lives, with those that share its fate and its limits."""
        self._worker = worker
        self._make = make
        self._made_at = 0  # the start of the worker in which the inner environment lives; 0 for none
        self._begun: Reset | None = None
        self._played: list[str] = []
        self._seen = Observation("", ())
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._open = True
        with worker.lock:
            worker.hosted += 1
        made = self._attempts(None)
        vars(self).update(name=made.name, instructions=made.instructions, max_actions=made.max_actions)
        super().__init__(made.horizon)

    def tasks(self, split: str) -> Sequence[Task]:
        """The inner environment's, asked for once."""
        if split not in self._splits:
            self._splits[split] = self._attempts(ListTasks(self._make.number, split))
        return self._splits[split]

    def benchmark(self, split: str, tasks: int) -> str:
        """What the inner environment says of results."""
        said: str = self._attempts(Describe(self._make.number, split, tasks))
        return said

    def start(self, task: Task) -> None:
        """Begin the episode in the worker."""
        self._begun, self._played = None, []
        request = Reset(self._make.number, task, self._seed)
        self._seen = self._attempts(request)
        self._begun = request

    def observe(self) -> Observation:
        """What the worker told last."""
        return self._seen

    def act(self, action: str) -> Outcome:
        """Play it in the worker."""
        played: Played = self._attempts(Step(self._make.number, action))
        self._played.append(action)
        self._seen = played.observation
        return played.outcome

    def hints(self) -> Hints:
        """Everything the expert knows of the present state, at one request."""
        if self._begun is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        hints: Hints = self._attempts(AskHints(self._make.number))
        return hints

    def expert(self) -> str | None:
        """The inner expert's action."""
        return self.hints().action

    def reflection(self) -> str | None:
        """The inner expert's reflection."""
        return self.hints().reflection

    def spoiler(self) -> str | None:
        """The inner expert's facts."""
        return self.hints().spoiler

    def close(self) -> None:
        """Forget the inner environment; a process that hosts no other ends."""
        if not self._open:
            return
        self._open = False
        with self._worker.lock:
            self._worker.hosted -= 1
            last = self._worker.hosted == 0
            if not (last or self._worker.closed) and self._made_at == self._worker.start():
                with contextlib.suppress(Broken):  # it is gone either way
                    self._worker.ask(Close(self._make.number), self.pool.deadline_s)
            self._made_at = 0
        if last:
            self._worker.stop()

    def _attempts(self, request: Request | None) -> Any:
        """Ask until it is answered; ``None`` asks for nothing but to be made."""
        sentence = ""
        for _ in range(ATTEMPTS):
            try:
                with self._worker.lock:
                    made = self._come_back()
                    return made if request is None else self._worker.ask(request, self.pool.deadline_s)
            except Broken as broken:
                self._made_at = 0
                sentence = f"environment {self._make.name!r} failed {self._where(request)}: it {broken}"
            self.pool.count(sentence)
            if self.pool.on_failure == "drop" and isinstance(request, Reset | Step | AskHints):
                raise EpisodeFailed(f"{sentence}; the episode is dropped.")
        raise WorkFailed(
            f"{sentence}; it was tried {ATTEMPTS} times: mend the environment, or raise deadline_s if it is only slow."
        )

    def _come_back(self) -> Made:
        """Have an inner environment that stands where this one does."""
        start = self._worker.start()
        if self._made_at != start:
            self._made: Made = self._worker.ask(self._make, max(self.pool.deadline_s, START_S))
            if self._begun is not None:
                self._replay(self._begun)
            self._made_at = start
        return self._made

    def _replay(self, begun: Reset) -> None:
        deadline_s = self.pool.deadline_s
        try:
            seen = self._worker.ask(begun, deadline_s)
            for action in self._played:
                seen = self._worker.ask(Step(begun.number, action), deadline_s).observation
        except InvalidInput as error:
            seen = error
        if seen != self._seen:
            raise WorkFailed(
                f"environment {self.name!r} played task {begun.task.id!r} again after a failure and came to another "
                "state; expected equal seeds to give equal episodes: run check-env for it."
            )

    def _where(self, request: Request | None) -> str:
        if isinstance(request, ListTasks | Describe):
            return f"when it was asked for its {request.split} tasks"
        if isinstance(request, Reset):
            return f"at the start of task {request.task.id!r}"
        if request is None or self._begun is None:
            return "when it was made"
        task = f"in task {self._begun.task.id!r} after {len(self._played)} steps"
        return f"{task}, at action {request.action!r}" if isinstance(request, Step) else f"{task}, asked for hints"


class WorkerPool:
    """A bounded set of processes that host environments; use it as a context, or close it.

    Args:
        workers: processes at most; never more than the machine has cores.
        deadline_s: seconds that one call of an environment may take.
        on_failure: ``replay`` plays the episode of a failed environment again up to where it stood; ``drop`` raises
            ``EpisodeFailed``, at which a rollout leaves the episode out.
        max_failures: failures of all environments together that are put up with.

    """

    def __init__(
        self,
        workers: int,
        *,
        deadline_s: float = 60.0,
        on_failure: Literal["replay", "drop"] = "replay",
        max_failures: int = 20,
    ) -> None:
        if workers < 1:
            raise InvalidInput(f"workers={workers} was given; expected 1 or more processes.")
        self.deadline_s = deadline_s
        self.on_failure = on_failure
        self.max_failures = max_failures
        self.failures = 0
        """Calls that failed so far, repeated ones included."""
        self._counting = threading.Lock()
        self._numbers = itertools.count()
        self._workers = [WorkerProcess() for _ in range(min(workers, os.cpu_count() or 1))]
        self._end = weakref.finalize(self, _end, self._workers)  # at the latest when the interpreter exits

    def make(self, name: str, options: Mapping[str, Any], count: int) -> list[WorkerEnv]:
        """``count`` environments ``name``, spread over the processes.

        Raises:
            InvalidInput: unknown name or options, or a class that worker processes cannot import.
            WorkFailed: they cannot be made.

        """
        path, total = env_path(name), len(self._workers)
        requests = [Make(next(self._numbers), name, options, path) for _ in range(count)]
        with ThreadPoolExecutor(total) as threads:
            return list(threads.map(lambda make: WorkerEnv(self, self._workers[make.number % total], make), requests))

    def count(self, sentence: str) -> None:
        """Take note of a failure.

        Raises:
            WorkFailed: it is one too many.

        """
        with self._counting:
            self.failures += 1
            failures = self.failures
        if failures > self.max_failures:
            raise WorkFailed(
                f"environments failed {failures} times; the limit is {self.max_failures}: {sentence}; mend the "
                "environment, or raise max_failures."
            )

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
