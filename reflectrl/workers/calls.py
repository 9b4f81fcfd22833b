"""``Call``: something that an environment in a worker process is asked, and how many calls are answered side by side.

Each process is sent all of its requests before the first answer is waited for, and answers are taken in from whichever
process has one, so that neither work nor stalls add up.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reflectrl.core.errors import EpisodeFailed, InvalidInput, WorkFailed
from reflectrl.workers.hosting import AskHints, Make, Request, Reset, Step
from reflectrl.workers.limits import Limits
from reflectrl.workers.process import Broken, WorkerProcess, listen

if TYPE_CHECKING:
    from reflectrl.workers.pool import WorkerEnv

ATTEMPTS = 3
"""Times that a call is made before it is given up."""


@dataclass(eq=False)
class Call:
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
        limits = self.env.limits
        self.env.leave()
        limits.count_failure(sentence)
        self.failures += 1
        if limits.on_failure == "drop" and isinstance(self.request, Reset | Step | AskHints):
            self.reply.set_exception(EpisodeFailed(f"{sentence}; the episode is dropped."))
        elif self.failures == ATTEMPTS:
            raise WorkFailed(
                f"{sentence}; it was tried {ATTEMPTS} times: mend the environment, or raise deadline_s if it is only "
                "slow."
            )
        elif self.failures == ATTEMPTS - 1:
            self.env.worker.end()  # the last attempt has a process without open files or threads of earlier ones


class Worker(WorkerProcess):
    """A process, and what it still owes answers to."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits.most_mb)
        self.limits = limits
        self.owed: list[Call] = []
        """In the order in which the answers come."""
        self._begun = (0, 0)  # the life, and how many episodes were begun in it

    @property
    def owing(self) -> bool:
        """Whether answers will come.

        They will not if the process ended at an earlier call, which alone is to blame, or if somebody was interrupted
        while waiting, so that an answer may be missing; such a call is repeated by whoever needs it.
        """
        return bool(self.owed) and len(self.awaited) == len(self.owed)

    def put(self, calls: Sequence[Call]) -> None:
        """Send the requests of all environments that are there or come back."""
        self._recycle(sum(isinstance(call.request, Reset) for call in calls))
        for call in calls:
            with call.attempt():
                call.env.come_back()
                if isinstance(call.request, Make):
                    call.reply.set_result(call.env.made)
        if sent := [call for call in calls if call.env.here and not call.reply.done()]:
            self.send([(call.env.number, call.request) for call in sent])
            self.owed = sent

    def take(self) -> None:
        """Take in the answers that have come, or see whether the next is still worth waiting for."""
        if not self.heard:
            with self.owed[0].attempt():
                self.check(self.limits.deadline_s)
        while self.owing and self.heard:
            with self.owed[0].attempt():
                self.owed.pop(0).reply.set_result(self.read())

    def _recycle(self, begin: int) -> None:
        """Have a fresh process where this one has grown too large and episodes ``begin``; the others are replayed.

        Raises:
            WorkFailed: one episode of each environment was too much for it, so a fresh one would not last either.

        """
        most_mb, (life, begun) = self.limits.max_memory_mb, self._begun
        if not begin or most_mb is None:
            return
        begun = begun if life == self.life else 0
        if (memory_mb := self.memory_mb) > most_mb:
            if begun < self.hosted:
                raise WorkFailed(
                    f"a worker process uses {memory_mb:,.0f} MB of memory after {begun} episodes of {self.hosted} "
                    f"environments; max_memory_mb is {most_mb:,}: raise it, or raise workers."
                )
            self.end()
            self.limits.count_recycled()
            begun = 0
        self._begun = (self.life, begun + begin)


def answer(calls: Sequence[Call]) -> None:
    """Have all calls answered."""
    with locked(calls) as workers:
        while calls := [call for call in calls if not call.reply.done()]:
            put(workers, calls)
            settle(workers)


def put(workers: Sequence[Worker], calls: Sequence[Call]) -> None:
    """Send each process its calls, once it owes no answers."""
    for worker in _settled(workers):
        worker.put([call for call in calls if call.env.worker is worker and not call.reply.done()])


def settle(workers: Sequence[Worker]) -> None:
    """Take in the answers that are owed."""
    for _ in _settled(workers):
        pass


def _settled(workers: Sequence[Worker]) -> Iterator[Worker]:
    """Each process once it owes no answers."""
    busy = list(workers)
    for worker in busy:
        worker.since = time.monotonic()
    while busy:
        for worker in [worker for worker in busy if not worker.owing]:
            busy.remove(worker)
            worker.owed = []
            yield worker
        if busy:
            patience = min(worker.patience(worker.limits.deadline_s) for worker in busy)
            try:
                listen(busy, patience)
            except BaseException:  # nobody waits any more, so they are started anew when they are next used
                for worker in busy:
                    worker.owed = []
                raise
            for worker in busy:
                worker.take()


@contextlib.contextmanager
def locked(calls: Sequence[Call]) -> Iterator[list[Worker]]:
    """The processes of these calls, for this thread alone."""
    workers = list(dict.fromkeys(call.env.worker for call in calls))
    with contextlib.ExitStack() as locks:
        for worker in sorted(workers, key=id):  # in one order, or two threads might each wait for the other
            locks.enter_context(worker.lock)
        yield workers
