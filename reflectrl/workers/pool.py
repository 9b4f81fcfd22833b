"""``WorkerPool``: environments in worker processes, which may crash or stall without taking the work with them.

A ``WorkerEnv`` is played like any other environment, with the same texts, rewards and infos. ``ask_ahead`` lets many of
them work side by side: each process is sent all of its requests in one message, so a busy processor has to turn to it
once, not once for each environment. ``send_ahead`` lets them work while the caller does something else. A process that
dies or stalls is started anew, and each of its environments plays its own episode again before it is used next.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NoReturn

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import InvalidInput, WorkFailed
from reflectrl.core.registry import env_path
from reflectrl.core.types import Hints, Observation, Outcome, Task
from reflectrl.workers.calls import Call, Worker, answer, locked, put, settle
from reflectrl.workers.hosting import AskHints, Close, Describe, ListTasks, Made, Make, Played, Request, Reset, Step
from reflectrl.workers.limits import Limits
from reflectrl.workers.process import Broken, WorkerProcess

START_S = 60.0
"""Making an environment may take so long, however short the deadline: a process starts and imports for it."""


class WorkerEnv(NatLangEnv):
    """An environment whose inside lives in a worker process; made by ``WorkerPool.make``.

    ``snapshot`` and ``restore`` are those of the base, by replay. ``np_random`` stays where the seed put it, so an
    episode that is begun without a seed after another one differs from the one that would be played in this process.
    """

    def __init__(self, limits: Limits, worker: Worker, number: int, make: Make) -> None:
        self.limits = limits
        """Those of its pool."""
        self.worker = worker
        """The process it lives in."""
        self.number = number
        """Its own in the pool."""
        self._make = make
        self._made_in = 0  # the life of the worker in which the inner environment was made; 0 for none
        self._next: Call | None = None  # what was asked and its answer not yet used
        self._begun: Reset | None = None
        self._played: list[str] = []
        self._seen = Observation("", ())
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._open = True
        with worker.lock:
            worker.hosted += 1
        self._ask(make)
        made = self.made
        vars(self).update({field: value for field, value in vars(made).items() if field != "horizon"})
        super().__init__(made.horizon)

    def __reduce__(self) -> NoReturn:
        """A process is not copied."""
        raise InvalidInput(
            f"environment {self.name!r} lives in a worker process, so it can be neither copied nor pickled; make "
            "another one with WorkerPool.make."
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The inner environment's, asked for once."""
        if split not in self._splits:
            self._splits[split] = self._ask(ListTasks(split))
        return self._splits[split]

    def benchmark(self, split: str, tasks: int) -> str:
        """What the inner environment says of results."""
        said: str = self._ask(Describe(split, tasks))
        return said

    def start(self, task: Task) -> None:
        """Begin the episode in the worker."""
        request = Reset(task, self._seed)
        self._seen = self._ask(request)
        self._begun = request

    def observe(self) -> Observation:
        """What the worker told last."""
        return self._seen

    def act(self, action: str) -> Outcome:
        """Play it in the worker."""
        played: Played = self._ask(Step(action))
        self._played.append(action)
        self._seen = played.observation
        return played.outcome

    def hints(self) -> Hints:
        """Everything the expert knows of the present state, at one request."""
        if self._begun is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        hints: Hints = self._ask(AskHints())
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

    def mistaken(self) -> bool | None:
        """Whether the inner expert would have done something better than the last action."""
        return self.hints().mistaken

    def secrets(self) -> Sequence[str]:
        """Words for what only the inner expert knows."""
        return self.hints().secrets

    def close(self) -> None:
        """Forget the inner environment; a process that hosts no other ends."""
        if not self._open:
            return
        self._open = False
        with self.worker.lock:
            self.worker.hosted -= 1
            last = self.worker.hosted == 0
            with contextlib.suppress(Broken, WorkFailed):  # it is gone either way
                settle([self.worker])
                if self.here and not (last or self.worker.awaited):
                    self.worker.ask((self.number, Close()), self.limits.deadline_s)
            self.leave()
        if last:
            self.worker.stop()

    @property
    def here(self) -> bool:
        """Whether there is an inner environment that can be asked."""
        return self._made_in == self.worker.life

    def leave(self) -> None:
        """Give the inner environment up; the next one plays the episode again."""
        self._made_in = 0

    def come_back(self) -> None:
        """Have an inner environment that stands where this one does."""
        self.worker.start()
        if not self.here:
            self.made: Made = self.worker.ask((self.number, self._make), max(self.limits.deadline_s, START_S))
            if self._begun is not None:
                self._replay(self._begun)
            self._made_in = self.worker.life

    def call(self, request: Request) -> Call:
        """Something that is asked now, or ahead of being played; a reset that was asked ahead is not asked again."""
        if self._next is not None:
            if isinstance(request, Reset) and request == self._next.request:
                return self._next
            self.leave()  # the inner environment may have gone another way
        if isinstance(request, Reset):
            self._begun, self._played = None, []
        self._next = Call(self, request)
        return self._next

    def _ask(self, request: Request) -> Any:
        call = self._next
        if call is None or call.request != request or not call.reply.done():
            call = self.call(request)
            answer([call])
        self._next = None
        return call.reply.result()

    def _replay(self, begun: Reset) -> None:
        deadline_s = self.limits.deadline_s
        try:
            seen = self.worker.ask((self.number, begun), deadline_s)
            for action in self._played:
                seen = self.worker.ask((self.number, Step(action)), deadline_s).observation
        except InvalidInput as error:
            seen = error
        if seen != self._seen:
            raise WorkFailed(
                f"environment {self.name!r} played task {begun.task.id!r} again after a failure and came to another "
                "state; expected equal seeds to give equal episodes: run check-env for it."
            )

    def failed(self, request: Request) -> str:
        """The beginning of a sentence on a failure."""
        return f"environment {self._make.name!r} failed {self._where(request)}"

    def _where(self, request: Request) -> str:
        if isinstance(request, ListTasks | Describe):
            return f"when it was asked for its {request.split} tasks"
        if isinstance(request, Reset):
            return f"at the start of task {request.task.id!r}"
        if isinstance(request, Make) or self._begun is None:
            return "when it was made"
        task = f"in task {self._begun.task.id!r} after {len(self._played)} steps"
        return f"{task}, at action {request.action!r}" if isinstance(request, Step) else f"{task}, asked for hints"


def ask_ahead(envs: Sequence[NatLangEnv], requests: Sequence[Reset | Step | AskHints]) -> None:
    """Have environments in worker processes deal, all at the same time, with what each of them will be asked next.

    Nobody hears of it, of an ``EpisodeFailed`` neither, until the environment is reset, stepped or asked for hints in
    just this way. Environments that live in this process do nothing ahead.
    """
    answer(_calls(envs, requests))


def send_ahead(envs: Sequence[NatLangEnv], resets: Sequence[Reset]) -> None:
    """``ask_ahead`` without waiting: the environments are reset while the caller does something else.

    Whoever uses an environment of the same process next waits until all of them are reset, so one slow reset holds up
    those it shares a process with, and no others. Only then are failures dealt with and the deadline counted.
    """
    calls = _calls(envs, resets)
    with locked(calls) as workers:
        put(workers, calls)


def _calls(envs: Sequence[NatLangEnv], requests: Sequence[Reset | Step | AskHints]) -> list[Call]:
    return [env.call(request) for env, request in zip(envs, requests, strict=True) if isinstance(env, WorkerEnv)]


class WorkerPool:
    """A bounded set of processes that host environments; use it as a context, or close it.

    Args:
        workers: processes at most; never more than the machine has cores.
        deadline_s: seconds that one call of an environment may take.
        on_failure: ``replay`` plays the episode of a failed environment again up to where it stood; ``drop`` raises
            ``EpisodeFailed``, at which a rollout leaves the episode out.
        max_failures: failures of all environments together that are put up with.
        max_memory_mb: resident memory at which a process is replaced by a fresh one before an episode begins, and at
            twice which it is ended at once, a failure.

    """

    def __init__(
        self,
        workers: int,
        *,
        deadline_s: float = 60.0,
        on_failure: Literal["replay", "drop"] = "replay",
        max_failures: int = 20,
        max_memory_mb: int | None = None,
    ) -> None:
        if workers < 1:
            raise InvalidInput(f"workers={workers} was given; expected 1 or more processes.")
        self.limits = Limits(deadline_s, on_failure, max_failures, max_memory_mb)
        """What is put up with, and was so far."""
        self._numbers = itertools.count()
        self._workers = [Worker(self.limits) for _ in range(min(workers, os.cpu_count() or 1))]
        self._end = weakref.finalize(self, _end, self._workers)  # at the latest when the interpreter exits

    def make(self, name: str, options: Mapping[str, Any], count: int) -> list[WorkerEnv]:
        """``count`` environments ``name``, spread over the processes.

        Raises:
            InvalidInput: unknown name or options, or a class that worker processes cannot import.
            WorkFailed: they cannot be made.

        """
        path, total = env_path(name), len(self._workers)
        make, numbers = Make(name, options, path), [next(self._numbers) for _ in range(count)]
        with ThreadPoolExecutor(total) as threads:
            return list(threads.map(lambda n: WorkerEnv(self.limits, self._workers[n % total], n, make), numbers))

    @property
    def failures(self) -> int:
        """Calls that failed so far, repeated ones included."""
        return self.limits.failures

    @property
    def recycled(self) -> int:
        """Processes that were replaced because of their memory so far, which is no failure."""
        return self.limits.recycled

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
