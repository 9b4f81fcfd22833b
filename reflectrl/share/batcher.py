"""``Batcher``: one thread in which an agent's players answer all waiting requests side by side.

Models take lists of prompts and are not made for several threads. Requests that arrive while they are busy are answered
together when they are free. An answer does not depend on the others, but for the last bits of its probabilities.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.errors import ModelFailed
from reflectrl.endpoint.journal import RejectedReply
from reflectrl.endpoint.replies import Refused
from reflectrl.pipeline.agent import Agent
from reflectrl.prompts.views import State
from reflectrl.rollout import Move

MAX_BATCH = 64
"""Requests answered in one batch."""


class Busy(WorkFailed):
    """The queue of pending requests is full."""


class Late(WorkFailed):
    """A reply took too long."""


class Batcher:
    """The players' thread and its queue of requests.

    Args:
        agent: its players answer; no other thread may use them meanwhile.
        max_waiting: maximum number of unanswered requests.

    """

    def __init__(self, agent: Agent, max_waiting: int) -> None:
        self._agent = agent
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[tuple[State, Future[Move]] | None] = queue.SimpleQueue()
        # a daemon, so that a chat endpoint that hangs cannot keep the process alive
        self._thread = threading.Thread(target=self._work, name="players", daemon=True)
        self.waiting = 0
        """Number of unanswered requests."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread once the waiting requests are answered."""
        self._queue.put(None)

    async def ask(self, state: State, timeout_s: float) -> Move:
        """Return the agent's move in ``state``.

        Raises:
            Busy: too many requests are pending.
            Late: it took longer than ``timeout_s``.
            InvalidInput: the prompt is too long for the model.
            WorkFailed: a chat endpoint failed, or a model's numbers are not finite.

        """
        if self.waiting >= self._max_waiting:
            raise Busy("too many requests are pending; try again in a second.")
        answer: Future[Move] = Future()
        self.waiting += 1
        try:
            self._queue.put((state, answer))
            return await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
        except TimeoutError:
            raise Late("no reply within the time limit; try again later.") from None
        finally:  # the thread skips a request whose client gave up
            self.waiting -= 1

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < MAX_BATCH and not self._queue.empty():
                if (job := self._queue.get()) is None:
                    self._queue.put(None)
                    break
                jobs.append(job)
            if jobs := [job for job in jobs if job[1].set_running_or_notify_cancel()]:
                self._answer(jobs)

    def _answer(self, jobs: Sequence[tuple[State, Future[Move]]]) -> None:
        try:
            moves = self._agent.play([state for state, _ in jobs])
        except (InvalidInput, ModelFailed, RejectedReply, Refused) as error:
            if len(jobs) > 1:  # perhaps only one of them cannot be answered: the others get their answers
                half = len(jobs) // 2
                self._answer(jobs[:half])
                self._answer(jobs[half:])
            else:
                jobs[0][1].set_exception(error)
        except Exception as error:  # noqa: BLE001 - the requests fail with the error, the thread continues
            for _, answer in jobs:
                answer.set_exception(error)
        else:
            for (_, answer), move in zip(jobs, moves, strict=True):
                answer.set_result(move)
