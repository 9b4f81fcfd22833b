"""``WorkerEnv``: an environment in a worker process; ``send`` and ``gather`` step many of them in parallel.

All requests are sent to their processes before the first reply is awaited, and replies are read from whichever process
has one, so that neither work nor stalls add up. If the process of an environment ended, the environment is created
again and its episode replayed up to the present state, in one message with its next request. A pool is for one thread
at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EpisodeFailed, InvalidInput, WorkFailed, place_in_episode
from reflectrl.core.types import Hints, Observation, Outcome, Reading, Task
from reflectrl.rollout.process import Call, WorkerProcess, progress
from reflectrl.rollout.protocol import (
    AskHints,
    AskReading,
    Close,
    Describe,
    EpisodeRequest,
    Invalid,
    ListTasks,
    Made,
    Make,
    PlayAction,
    Played,
    Raised,
    Reply,
    Request,
    Reset,
    Result,
    need_plain,
)

if TYPE_CHECKING:
    from reflectrl.rollout.pool import WorkerPool

MAKE_DEADLINE_S = 60.0
"""Minimum deadline in seconds for creating an environment, since a process starts and imports for it."""
MAX_ATTEMPTS = 3
"""Number of attempts before a request is given up."""


class Pending:
    """A request to an environment in a worker process, retried until it has an answer or a final error."""

    def __init__(self, env: WorkerEnv, request: Request) -> None:
        self.env = env
        self.request = request
        self._calls: list[Call] = []  # messages sent for it: perhaps a replay, and the request
        self._failures = 0
        self._value: Any = None
        self._error: InvalidInput | EpisodeFailed | None = None
        self.done = False
        """True if there is an answer or a final error."""

    def result(self) -> Any:
        """Wait for the answer, and return what the environment's method would return in this process.

        From then on, the environment is in the state after the request, even if it was asked for something else
        meanwhile.

        Raises:
            InvalidInput: the environment refused the request.
            EpisodeFailed: the environment failed, and failures drop the episode.
            WorkFailed: the environment failed once too often, or all of them together did.
        """
        return self.env.collect(self)

    def answer(self) -> Any:
        """Return the answer that arrived, or raise the error that arrived instead; see ``result``."""
        if self._error is not None:
            raise self._error
        return self._value

    def calls(self) -> list[Call]:
        """Return the calls to send for the request, which begin with a replay if one is needed."""
        env, deadline_s = self.env, self.env.pool.limits.deadline_s
        self._calls = [
            Call(env.number, each, max(deadline_s, MAKE_DEADLINE_S) if isinstance(each, Make) else deadline_s)
            for each in (*env.replay(self.request), self.request)
        ]
        env.life = env.worker.life
        return self._calls

    def settle(self) -> bool:
        """Process the replies; return whether the request is done. Its process must not be busy."""
        calls, self._calls = self._calls, []
        replies: list[Result[Any] | Invalid] = []
        for call in calls:
            if call.reply is None:  # the process ended because of another request
                return False
            if isinstance(call.reply, Raised):
                self._fail(call.reply.what)
                return self.done
            replies.append(call.reply)
            if isinstance(call.request, Make) and isinstance(call.reply, Invalid):
                self.env.life = 0
                break
        else:
            self.env.check_replay(replies[:-1])
        if replies:
            last, self.done = replies[-1], True
            if isinstance(last, Invalid):
                self._error = InvalidInput(last.sentence)
            else:
                self._value = last.value
        return self.done

    def _fail(self, how: str) -> None:
        """Count a failure; the request is retried, unless failures drop the episode."""
        self.env.life = 0
        if isinstance(self.request, Close):
            self.done = True
            return
        pool, sentence = self.env.pool, f"{self.env.failed_at(self.request)}: it {how}"
        pool.count_failure(sentence)
        self._failures += 1
        if pool.limits.on_failure == "drop" and isinstance(self.request, EpisodeRequest):
            self._error = EpisodeFailed(f"{sentence}; the episode is dropped.")
            self.done = True
        elif self._failures == MAX_ATTEMPTS:
            raise WorkFailed(
                f"{sentence}; it was tried {MAX_ATTEMPTS} times: fix the environment, or raise deadline_s if it is "
                "only slow."
            )
        elif self._failures == MAX_ATTEMPTS - 1:
            self.env.worker.stop()  # the last attempt gets a new process, without open files or threads


@dataclass(frozen=True)
class Local:
    """A request to an environment in this process, which is executed when its result is read."""

    env: NatLangEnv
    request: EpisodeRequest

    def result(self) -> Any:
        """Return the result of the environment's method, see ``Pending.result``."""
        try:
            return _call(self.env, self.request)
        except EpisodeFailed:
            if isinstance(self.request, AskReading):  # the episode can go on without it
                self.env.restore(self.env.snapshot())
            raise


def send(envs: Sequence[NatLangEnv], requests: Sequence[EpisodeRequest]) -> list[Pending | Local]:
    """Send a request to each environment; those in worker processes work while the caller does something else.

    A process answers its requests in order, so a slow environment delays only those in the same process. The deadline
    counts from the start of the wait for an answer.

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
    """Wait for the answers of worker processes in parallel; send requests that failed or were not sent yet.

    Args:
        requests: at most one for each environment.
        wait: if false, send requests, and wait only for those that were sent to the processes before.

    Raises:
        WorkFailed: a request failed once too often, or all together did.
    """
    unanswered: dict[WorkerProcess, list[Pending]] = {}
    for request in requests:
        if isinstance(request, Pending):
            unanswered.setdefault(request.env.worker, []).append(request)
    for worker in unanswered:
        worker.restart_clock()
    while unanswered:
        for worker in [worker for worker in unanswered if not worker.busy]:
            pending = unanswered[worker] = [each for each in unanswered[worker] if not each.settle()]
            if pending:
                _send(worker, pending)
            if not (pending and wait):
                del unanswered[worker]
        if busy := [worker for worker in unanswered if worker.busy]:
            progress(busy)


def _send(worker: WorkerProcess, pending: Sequence[Pending]) -> None:
    pending[0].env.pool.recycled += worker.recycle(sum(isinstance(each.request, Reset) for each in pending))
    worker.send([call for each in pending for call in each.calls()])


def _call(env: NatLangEnv, request: Request) -> Any:
    match request:
        case Reset(task=task, seed=seed):
            return env.reset(seed=seed, options={"task": task})
        case PlayAction(action=action):
            return env.step(action)
        case AskReading(thought=thought):
            return env.reading(thought)
        case AskHints(previous=previous):
            return env.hints(previous)
    raise RuntimeError(f"{type(request).__name__} is not a request in an episode")


class WorkerEnv(NatLangEnv):
    """An environment in a worker process; created by ``WorkerPool.make``.

    ``np_random`` does not advance in this process, so an episode that begins without a seed after another one differs
    from the one that would be played in this process.
    """

    def __init__(self, pool: WorkerPool, worker: WorkerProcess, number: int, make: Make) -> None:
        self.pool = pool
        self.worker = worker
        self.number = number
        self._make = make
        self.life = 0
        """Life of the worker process whose inner environment has this one's state; 0 for none."""
        self._unread: Pending | None = None  # the last request, until its answer is read
        self._collected: Pending | None = None  # the request whose result is being read
        self._begun: Reset | None = None
        self._played: list[str] = []
        self._seen = Observation("", ())
        self._splits: dict[str, tuple[Task, ...]] = {}
        self._open = False

    def open(self, made: Made) -> None:
        """Copy the properties of the inner environment, which was created."""
        vars(self).update({field: value for field, value in vars(made).items() if field != "horizon"})
        super().__init__(made.horizon)
        self.worker.hosted += 1
        self._unread, self._open = None, True

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied, since a process cannot be."""
        raise InvalidInput(
            f"environment {self.name!r} lives in a worker process, so it can be neither copied nor pickled; make "
            "another one with WorkerPool.make."
        )

    # ---- the methods of an environment -----------------------------------------------------------------------

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of the inner environment, which is asked for them once."""
        if split not in self._splits:
            self._splits[split] = self._ask(ListTasks(split))
        return self._splits[split]

    def benchmark(self, split: str, tasks: int) -> str:
        """Return the inner environment's description of results."""
        return str(self._ask(Describe(split, tasks)))

    def start(self, task: Task) -> None:
        """Begin the episode in the worker."""
        request = Reset(task, self._seed)
        self._seen = self._ask(request)
        self._begun = request

    def observe(self) -> Observation:
        """Return the observation that came with the last answer."""
        return self._seen

    def act(self, action: str) -> Outcome:
        """Play an action in the worker."""
        played: Played = self._ask(PlayAction(action))
        self._played.append(action)
        self._seen = played.observation
        return played.outcome

    def _hints(self, previous: str | None) -> Hints:
        hints: Hints = self._ask(AskHints(previous))  # all in one request
        return hints

    def expert(self) -> str | None:
        """Return the action of the inner expert."""
        return self.hints().action

    def reflection(self, previous: str | None = None) -> str | None:
        """Return the reflection of the inner expert."""
        return self.hints(previous).reflection

    def read_thought(self, thought: str) -> Reading:
        """Return the inner environment's reading of a policy's thought."""
        reading: Reading = self._ask(AskReading(thought))
        return reading

    def spoiler(self) -> str | None:
        """Return the privileged facts of the inner expert."""
        return self.hints().spoiler

    def mistaken(self) -> bool | None:
        """Return whether the last action was worse than the inner expert's."""
        return self.hints().mistaken

    def secrets(self) -> Sequence[str]:
        """Return the words for what only the inner expert knows."""
        return self.hints().secrets

    def close(self) -> None:
        """Close the inner environment; its process ends if it hosts no other one."""
        if not self._open:
            return
        self._open = False
        self.worker.hosted -= 1
        self.worker.restart_clock()
        while self.worker.busy:
            progress([self.worker])
        if self.worker.hosted == 0:
            self.worker.stop()
        elif self.life == self.worker.life:
            gather([Pending(self, Close())])
        self.life = 0

    # ---- the inner environment -------------------------------------------------------------------------------

    def replay(self, request: Request) -> list[Request]:
        """Return the requests that bring a new inner environment to this one's state; none if the old one exists."""
        if self.life == self.worker.life or isinstance(request, Make):
            return []
        steps = map(PlayAction, self._played)
        return [self._make] if self._begun is None else [self._make, self._begun, *steps]

    def check_replay(self, replies: Sequence[Reply]) -> None:
        """Check that a replay has led to this environment's state."""
        if self._begun is None or not replies:
            return
        seen = replies[-1].value if isinstance(replies[-1], Result) else None
        if (seen.observation if isinstance(seen, Played) else seen) != self._seen:
            self.life = 0
            raise WorkFailed(
                f"environment {self.name!r} played task {self._begun.task.id!r} again after a failure and reached "
                "another state; expected equal seeds to give equal episodes: run check-env for it."
            )

    def pend(self, request: Request) -> Pending:
        """Return a request that has not been sent yet."""
        if self._unread is not None:
            self.life = 0  # the inner environment may be in another state
        if isinstance(request, Reset):
            need_plain(request.task.options, f"task {request.task.id!r}")
            self._begun, self._played = None, []
        self._unread = Pending(self, request)
        return self._unread

    def collect(self, pending: Pending) -> Any:
        """Return the result of a pending request, which is sent again if another one came after it."""
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
        """Return the beginning of a sentence on a failed request."""
        task, played = self._begun and self._begun.task, len(self._played)
        match request:
            case ListTasks(split=split) | Describe(split=split):
                where = f"when it was asked for its {split} tasks"
            case Reset(task=task):
                where = place_in_episode(task, 0)
            case PlayAction(action=action) if task:
                where = place_in_episode(task, played, action)
            case AskHints() | AskReading() if task:
                where = place_in_episode(task, played, hints=True)
            case _:
                where = "when it was made"
        return f"environment {self._make.name!r} failed {where}"
