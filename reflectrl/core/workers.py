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
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
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

    def __init__(self, pool: WorkerPool, worker: _Worker, number: int, make: Make) -> None:
        self.pool = pool
        """Where it lives, with those that share its fate and its limits."""
        self.worker = worker
        """The process it lives in."""
        self.number = number
        """Its own in the pool."""
        self._make = make
        self._made_in = 0  # the life of the worker in which the inner environment was made; 0 for none
        self._next: _Call | None = None  # what was asked and its answer not yet used
        self._begun: Reset | None = None
        self._played: list[str] = []
        self._seen = Observation("", ())
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._open = True
        with worker.lock:
            worker.hosted += 1
        self._ask(make)
        made = self.made
        vars(self).update(name=made.name, instructions=made.instructions, max_actions=made.max_actions)
        super().__init__(made.horizon)

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

    def close(self) -> None:
        """Forget the inner environment; a process that hosts no other ends."""
        if not self._open:
            return
        self._open = False
        with self.worker.lock:
            self.worker.hosted -= 1
            last = self.worker.hosted == 0
            with contextlib.suppress(Broken, WorkFailed):  # it is gone either way
                self.worker.settle()
                if self.here and not (last or self.worker.awaited):
                    self.worker.ask((self.number, Close()), self.pool.deadline_s)
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
            self.made: Made = self.worker.ask((self.number, self._make), max(self.pool.deadline_s, START_S))
            if self._begun is not None:
                self._replay(self._begun)
            self._made_in = self.worker.life

    def call(self, request: Request) -> _Call:
        """Something that is asked now, or ahead of being played; a reset that was asked ahead is not asked again."""
        if self._next is not None:
            if isinstance(request, Reset) and request == self._next.request:
                return self._next
            self.leave()  # the inner environment may have gone another way
        if isinstance(request, Reset):
            self._begun, self._played = None, []
        self._next = _Call(self, request)
        return self._next

    def _ask(self, request: Request) -> Any:
        call = self._next
        if call is None or call.request != request or not call.reply.done():
            call = self.call(request)
            _answer([call])
        self._next = None
        return call.reply.result()

    def _replay(self, begun: Reset) -> None:
        deadline_s = self.pool.deadline_s
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


@dataclass(eq=False)
class _Call:
    """Something that an environment is asked, and in ``reply`` the answer or the error once it is there."""

    env: WorkerEnv
    request: Request
    reply: Future[Any] = field(default_factory=Future)
    failures: int = 0

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """What goes wrong within is the fault of this call: it ends with the error, or is left to be repeated."""
        try:
            yield
        except InvalidInput as refused:
            self.reply.set_exception(refused)
        except Broken as broken:
            self._fail(f"{self.env.failed(self.request)}: it {broken}")

    def _fail(self, sentence: str) -> None:
        pool = self.env.pool
        self.env.leave()
        pool.count(sentence)
        self.failures += 1
        if pool.on_failure == "drop" and isinstance(self.request, Reset | Step | AskHints):
            self.reply.set_exception(EpisodeFailed(f"{sentence}; the episode is dropped."))
        elif self.failures == ATTEMPTS:
            raise WorkFailed(
                f"{sentence}; it was tried {ATTEMPTS} times: mend the environment, or raise deadline_s if it is only "
                "slow."
            )


class _Worker(WorkerProcess):
    """A process, and what it still owes answers to."""

    def __init__(self) -> None:
        super().__init__()
        self.owed: list[_Call] = []
        """In the order in which the answers come."""

    def put(self, calls: Sequence[_Call]) -> None:
        """Send the requests of all environments that are there or come back."""
        for call in calls:
            with call.attempt():
                call.env.come_back()
                if isinstance(call.request, Make):
                    call.reply.set_result(call.env.made)
        if sent := [call for call in calls if call.env.here and not call.reply.done()]:
            self.send([(call.env.number, call.request) for call in sent])
            self.owed = sent

    def settle(self) -> None:
        """Take in the answers that are owed.

        A call stays without one if the process ended at an earlier call, which alone is to blame, or if somebody was
        interrupted while waiting, so that an answer may be missing; it is repeated by whoever needs it.
        """
        while self.owed and self.awaited == len(self.owed):
            call = self.owed.pop(0)
            with call.attempt():
                call.reply.set_result(self.receive(call.env.pool.deadline_s))
        self.owed = []


def ask_ahead(envs: Sequence[NatLangEnv], requests: Sequence[Reset | Step | AskHints]) -> None:
    """Have environments in worker processes deal, all at the same time, with what each of them will be asked next.

    Nobody hears of it, of an ``EpisodeFailed`` neither, until the environment is reset, stepped or asked for hints in
    just this way. Environments that live in this process do nothing ahead.
    """
    _answer(_calls(envs, requests))


def send_ahead(envs: Sequence[NatLangEnv], resets: Sequence[Reset]) -> None:
    """``ask_ahead`` without waiting: the environments are reset while the caller does something else.

    Whoever uses an environment of the same process next waits until all of them are reset, so one slow reset holds up
    those it shares a process with, and no others. Only then are failures dealt with and the deadline counted.
    """
    calls = _calls(envs, resets)
    with _locked(calls) as workers:
        _put(workers, calls)


def _calls(envs: Sequence[NatLangEnv], requests: Sequence[Reset | Step | AskHints]) -> list[_Call]:
    return [env.call(request) for env, request in zip(envs, requests, strict=True) if isinstance(env, WorkerEnv)]


def _answer(calls: Sequence[_Call]) -> None:
    """Have all calls answered; each process is sent all of its requests before the first answer is waited for."""
    with _locked(calls) as workers:
        while calls := [call for call in calls if not call.reply.done()]:
            _put(workers, calls)
            for worker in workers:
                worker.settle()


def _put(workers: Sequence[_Worker], calls: Sequence[_Call]) -> None:
    """Send each process its calls, those last that owe the most answers, which come before new requests."""
    for worker in sorted(workers, key=lambda each: len(each.owed)):
        worker.settle()
        worker.put([call for call in calls if call.env.worker is worker and not call.reply.done()])


@contextlib.contextmanager
def _locked(calls: Sequence[_Call]) -> Iterator[list[_Worker]]:
    """The processes of these calls, for this thread alone."""
    workers = list(dict.fromkeys(call.env.worker for call in calls))
    with contextlib.ExitStack() as locks:
        for worker in sorted(workers, key=id):  # in one order, or two threads might each wait for the other
            locks.enter_context(worker.lock)
        yield workers


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
        self._workers = [_Worker() for _ in range(min(workers, os.cpu_count() or 1))]
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
            return list(threads.map(lambda n: WorkerEnv(self, self._workers[n % total], n, make), numbers))

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
