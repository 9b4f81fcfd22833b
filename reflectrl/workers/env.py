"""``WorkerEnv``: an environment whose inside lives in a worker process, and how its requests are answered.

Each process is sent all of its requests before the first answer is waited for, and answers are taken in from whichever
process has one, so that neither work nor stalls add up.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from reflectrl.core.env import NatLangEnv, place_in_episode
from reflectrl.core.errors import EpisodeFailed, InvalidInput, WorkFailed
from reflectrl.core.types import Hints, Observation, Outcome, Task
from reflectrl.workers.limits import FailureCount
from reflectrl.workers.process import Broken, Call, WorkerProcess, progress
from reflectrl.workers.protocol import (
    Answer,
    AskHints,
    Close,
    Describe,
    ListTasks,
    Made,
    Make,
    Played,
    Raised,
    Refused,
    Request,
    Reset,
    Step,
    need_plain,
)

MAKE_DEADLINE_S = 60.0
"""Time for making an environment, however short the deadline: a process starts and imports for it."""
MAX_ATTEMPTS = 3
"""Times that a request is sent before it is given up."""


class Pending(Call):
    """A request to an environment in a worker process, sent again when it fails, until there is an answer or an error.

    Args:
        env: the environment.
        request: the request to it.

    """

    def __init__(self, env: WorkerEnv, request: Request) -> None:
        super().__init__(env.number, request)
        self.env = env
        self._dropped: EpisodeFailed | None = None
        self._failures = 0

    def result(self) -> Any:
        """Wait for the answer, and return what the environment's method does when it is called in this process.

        The environment stands where the request leads from then on, even if it was asked for something else meanwhile.

        Raises:
            InvalidInput: the environment refused.
            EpisodeFailed: it failed, and failures drop the episode.
            WorkFailed: it failed once too often, or all together did.

        """
        return self.env.collect(self)

    def answer(self) -> Any:
        """Return the answer, which has come, or raise the error that came instead; see ``result``."""
        if self._dropped is not None:
            raise self._dropped
        return super().answer()

    @property
    def done(self) -> bool:
        """True if there is an answer, or an error that is final."""
        return isinstance(self.reply, Answer | Refused) or self._dropped is not None

    def settle(self) -> bool:
        """Deal with a failure; returns whether the request is done. Its process must not be busy."""
        if isinstance(self.reply, Raised):
            how, self.reply = self.reply.what, None
            self.fail(how)
        return self.done

    def revive(self) -> None:
        """Revive the environment; if that fails, so does the request."""
        try:
            self.env.revive()
        except InvalidInput as refusal:
            self.reply = Refused(str(refusal))
        except Broken as broken:
            self.fail(str(broken))
        else:
            if isinstance(self.request, Make):
                self.reply = Answer(self.env.made)

    def fail(self, how: str) -> None:
        """Count a failure; the request is sent again, unless failures drop the episode.

        Raises:
            WorkFailed: it failed once too often, or all together did.

        """
        count, sentence = self.env.count, f"{self.env.failed_at(self.request)}: it {how}"
        self.env.abandon()
        count.add(sentence)
        self._failures += 1
        if count.limits.on_failure == "drop" and isinstance(self.request, Reset | Step | AskHints):
            self._dropped = EpisodeFailed(f"{sentence}; the episode is dropped.")
        elif self._failures == MAX_ATTEMPTS:
            raise WorkFailed(
                f"{sentence}; it was tried {MAX_ATTEMPTS} times: fix the environment, or raise deadline_s if it is "
                "only slow."
            )
        elif self._failures == MAX_ATTEMPTS - 1:
            self.env.worker.stop()  # the last attempt has a process without open files or threads of earlier ones


@dataclass(frozen=True)
class Local:
    """A request to an environment that lives in this process, which is made when its result is read."""

    env: NatLangEnv
    request: Reset | Step | AskHints

    def result(self) -> Any:
        """Return what the environment's method does."""
        return _call(self.env, self.request)


def send(envs: Sequence[NatLangEnv], requests: Sequence[Reset | Step | AskHints]) -> list[Pending | Local]:
    """Send a request to each environment; those in worker processes work while the caller does something else.

    An environment waits until all requests that were sent to its process before are answered, so a slow one holds up
    those it shares a process with, and no others. The deadline is counted once an answer is waited for.

    Returns:
        Pending results. Read them, after ``gather`` where there are several, before the environments are used again.

    """
    pending = [
        env.pend(request) if isinstance(env, WorkerEnv) else Local(env, request)
        for env, request in zip(envs, requests, strict=True)
    ]
    gather(pending, wait=False)
    return pending


def gather(requests: Sequence[Pending | Local], *, wait: bool = True) -> None:
    """Wait for the answers of worker processes, side by side; what failed or was not sent yet is sent.

    Args:
        requests: at most one for each environment.
        wait: without it, requests are sent, and only what the processes were sent before is waited for.

    Raises:
        WorkFailed: a request failed once too often, or all together did.

    """
    unanswered: dict[WorkerProcess, list[Pending]] = {}
    for request in requests:
        if isinstance(request, Pending):
            unanswered.setdefault(request.env.worker, []).append(request)
    with contextlib.ExitStack() as locks:
        for worker in sorted(unanswered, key=id):  # in one order, or two threads might each wait for the other
            locks.enter_context(worker.lock)
            worker.restart_clock()
        while unanswered:
            for worker in [worker for worker in unanswered if not worker.busy]:
                calls = unanswered[worker] = [call for call in unanswered[worker] if not call.settle()]
                if calls:
                    _send(worker, calls)
                if not (calls and wait):
                    del unanswered[worker]
            if busy := [worker for worker in unanswered if worker.busy]:
                progress(busy, unanswered[busy[0]][0].env.count.limits.deadline_s)


def _send(worker: WorkerProcess, calls: Sequence[Pending]) -> None:
    """Send the requests of all environments that are alive or can be revived."""
    count = calls[0].env.count
    count.recycled += worker.recycle(count.limits.max_memory_mb, sum(isinstance(call.request, Reset) for call in calls))
    for call in calls:
        call.revive()
    if ready := [call for call in calls if call.env.alive and not call.done]:
        worker.send(ready)


def _call(env: NatLangEnv, request: Request) -> Any:
    """Call the method of an environment that a request stands for."""
    match request:
        case Reset(task=task, seed=seed):
            return env.reset(seed=seed, options={"task": task})
        case Step(action=action):
            return env.step(action)
    return env.hints()


class WorkerEnv(NatLangEnv):
    """An environment whose inside lives in a worker process; made by ``WorkerPool.make``.

    ``snapshot`` and ``restore`` are those of the base, by replay. ``np_random`` stays where the seed put it, so an
    episode that is begun without a seed after another one differs from the one that would be played in this process.

    Args:
        count: the failures of its pool.
        worker: the process that it lives in.
        number: its index in the pool.
        make: the request that makes the inner environment.

    """

    def __init__(self, count: FailureCount, worker: WorkerProcess, number: int, make: Make) -> None:
        self.count = count
        self.worker = worker
        self.number = number
        self._make = make
        self._made_in = 0  # the life of the worker in which the inner environment was made; 0 for none
        self._unread: Pending | None = None  # the last request, until its answer is read
        self._collected: Pending | None = None  # the request whose result is being read
        self._begun: Reset | None = None
        self._played: list[str] = []
        self._seen = Observation("", ())
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._open = True
        with worker.lock:
            worker.hosted += 1
        self.made: Made = self._ask(make)
        vars(self).update({field: value for field, value in vars(self.made).items() if field != "horizon"})
        super().__init__(self.made.horizon)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied, as a process cannot be."""
        raise InvalidInput(
            f"environment {self.name!r} lives in a worker process, so it can be neither copied nor pickled; make "
            "another one with WorkerPool.make."
        )

    # ---- the methods of an environment -----------------------------------------------------------------------

    def tasks(self, split: str) -> Sequence[Task]:
        """Tasks of the inner environment, which is asked for them once."""
        if split not in self._splits:
            self._splits[split] = self._ask(ListTasks(split))
        return self._splits[split]

    def benchmark(self, split: str, tasks: int) -> str:
        """Description of results by the inner environment."""
        return str(self._ask(Describe(split, tasks)))

    def start(self, task: Task) -> None:
        """Begin the episode in the worker."""
        request = Reset(task, self._seed)
        self._seen = self._ask(request)
        self._begun = request

    def observe(self) -> Observation:
        """Observation that came with the last answer."""
        return self._seen

    def act(self, action: str) -> Outcome:
        """Play an action in the worker."""
        played: Played = self._ask(Step(action))
        self._played.append(action)
        self._seen = played.observation
        return played.outcome

    def hints(self) -> Hints:
        """Hints of the inner expert on the present state, in one request."""
        if self._begun is None:
            raise InvalidInput(f"{self.name!r} has not been reset yet; call reset first.")
        hints: Hints = self._ask(AskHints())
        return hints

    def expert(self) -> str | None:
        """Action of the inner expert."""
        return self.hints().action

    def reflection(self) -> str | None:
        """Reflection of the inner expert."""
        return self.hints().reflection

    def spoiler(self) -> str | None:
        """Privileged facts of the inner expert."""
        return self.hints().spoiler

    def mistaken(self) -> bool | None:
        """Return whether the last action was worse than the inner expert's."""
        return self.hints().mistaken

    def secrets(self) -> Sequence[str]:
        """Words for what only the inner expert knows."""
        return self.hints().secrets

    def close(self) -> None:
        """Close the inner environment; a process that hosts no other ends."""
        if not self._open:
            return
        self._open = False
        with self.worker.lock:
            self.worker.hosted -= 1
            deadline_s = self.count.limits.deadline_s
            self.worker.restart_clock()
            while self.worker.busy:
                progress([self.worker], deadline_s)
            if self.worker.hosted == 0:
                self.worker.stop()
            elif self.alive:
                with contextlib.suppress(Broken, InvalidInput):  # it is gone either way
                    self.worker.ask(self.number, Close(), deadline_s)
            self.abandon()

    # ---- the inner environment -------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """True if there is an inner environment that stands where this one does."""
        return self._made_in == self.worker.life

    def abandon(self) -> None:
        """Give the inner environment up; ``revive`` makes another one."""
        self._made_in = 0

    def revive(self) -> None:
        """Make an inner environment, and play the episode again up to where this one stands, unless it is alive.

        Raises:
            Broken: it failed.
            InvalidInput: it cannot be made.
            WorkFailed: the episode led to another state.

        """
        self.worker.start()
        if self.alive:
            return
        self.made = self.worker.ask(self.number, self._make, max(self.count.limits.deadline_s, MAKE_DEADLINE_S))
        if self._begun is not None and self._replay(self._begun) != self._seen:
            raise WorkFailed(
                f"environment {self.name!r} played task {self._begun.task.id!r} again after a failure and reached "
                "another state; expected equal seeds to give equal episodes: run check-env for it."
            )
        self._made_in = self.worker.life

    def _replay(self, begun: Reset) -> Observation | None:
        """Return the last observation; ``None`` where an action is refused now."""
        deadline_s = self.count.limits.deadline_s
        try:
            seen: Observation = self.worker.ask(self.number, begun, deadline_s)
            for action in self._played:
                seen = self.worker.ask(self.number, Step(action), deadline_s).observation
        except InvalidInput:
            return None
        return seen

    def pend(self, request: Request) -> Pending:
        """Return a request that is still to be sent.

        If the last one was not read, the inner environment may have gone another way, and is given up.

        Raises:
            InvalidInput: a task with options that are not plain values.

        """
        if self._unread is not None:
            self.abandon()
        if isinstance(request, Reset):
            need_plain(request.task.options, f"task {request.task.id!r}")
            self._begun, self._played = None, []
        self._unread = Pending(self, request)
        return self._unread

    def collect(self, pending: Pending) -> Any:
        """Return the result of a pending request, which is made again if another one came after it."""
        self._collected = pending if pending is self._unread else None
        try:
            return _call(self, pending.request)
        finally:
            self._collected = None

    def _ask(self, request: Request) -> Any:
        pending = self._collected or self.pend(request)
        if not pending.done:
            gather([pending])
        self._unread = None
        return pending.answer()

    def failed_at(self, request: Request) -> str:
        """Begin a sentence on a request that failed."""
        where = "when it was made"
        if isinstance(request, ListTasks | Describe):
            where = f"when it was asked for its {request.split} tasks"
        elif isinstance(request, Reset):
            where = place_in_episode(request.task, 0)
        elif self._begun is not None and not isinstance(request, Make):
            action = request.action if isinstance(request, Step) else None
            where = place_in_episode(self._begun.task, len(self._played), action, hints=action is None)
        return f"environment {self._make.name!r} failed {where}"
