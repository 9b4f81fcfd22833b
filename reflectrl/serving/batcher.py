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
from dataclasses import dataclass
from typing import TypeAlias, overload

from reflectrl.core import InvalidInput, Utterance
from reflectrl.core.errors import ModelFailed
from reflectrl.endpoint.journal import RejectedReply
from reflectrl.endpoint.replies import Refused
from reflectrl.pipeline.agent import Agent
from reflectrl.prompts.views import State, View
from reflectrl.rollout import Move

MAX_BATCH = 64
"""Requests answered in one batch."""


@dataclass(frozen=True)
class Chat:
    """Request for the reflector alone, with a prompt written by the client."""

    view: View
    draw: float
    """Random draw, uniform in [0, 1)."""


Question: TypeAlias = State | Chat
Answer: TypeAlias = Move | Utterance


class Busy(Exception):
    """The queue of waiting requests is full."""


class Batcher:
    """The players' thread and its queue of requests.

    Args:
        agent: its players answer; no other thread may use them meanwhile.
        max_waiting: maximum number of unanswered requests.

    """

    def __init__(self, agent: Agent, max_waiting: int) -> None:
        self._agent = agent
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[tuple[Question, Future[Answer]] | None] = queue.SimpleQueue()
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

    @overload
    async def ask(self, question: State, timeout_s: float) -> Move: ...

    @overload
    async def ask(self, question: Chat, timeout_s: float) -> Utterance: ...

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """Return the answer to one request.

        Raises:
            Busy: too many requests wait.
            TimeoutError: it took too long.
            InvalidInput: the prompt is too long for the model.
            WorkFailed: a chat endpoint failed, or a model's numbers are not finite.

        """
        if self.waiting >= self._max_waiting:
            raise Busy
        answer: Future[Answer] = Future()
        self.waiting += 1
        try:
            self._queue.put((question, answer))
            return await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
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
            if jobs := [(asked, answer) for asked, answer in jobs if answer.set_running_or_notify_cancel()]:
                self._answer(jobs)

    def _answer(self, jobs: Sequence[tuple[Question, Future[Answer]]]) -> None:
        try:
            answers = _answers(self._agent, [question for question, _ in jobs])
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
            for (_, promised), found in zip(jobs, answers, strict=True):
                promised.set_result(found)


def _answers(agent: Agent, questions: Sequence[Question]) -> list[Answer]:
    """Play a turn in every state and let the reflector answer every chat, as one batch."""
    moves = iter(agent.play([question for question in questions if isinstance(question, State)]))
    chats = [question for question in questions if isinstance(question, Chat)]
    said: list[Utterance] = []
    if chats and agent.reflector is not None:  # without one, the server refuses chats
        said = agent.reflector.say([chat.view for chat in chats], [chat.draw for chat in chats])
    words = iter(said)
    return [next(moves) if isinstance(question, State) else next(words) for question in questions]
