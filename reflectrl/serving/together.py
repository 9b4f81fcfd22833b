"""``Together``: one thread in which an agent's players think for whoever asks, all that wait side by side.

Models take lists of prompts and are not made for several threads. What comes while they are busy is played in one go
when they are free. Nobody's answer depends on the company, but for the last bits of its probabilities.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias, overload

from reflectrl.core import InvalidInput, Observation, Utterance
from reflectrl.pipeline.agent import Agent, Move
from reflectrl.prompts import Prompt
from reflectrl.prompts.menu import make_menu

MOST_TOGETHER = 64
"""Questions that are played in one go."""


@dataclass(frozen=True)
class ToAct:
    """A state in which somebody asks for an action."""

    observation: Observation
    past: tuple[str, ...]
    reflection: str | None
    """Said instead of what the reflector would say."""
    draws: tuple[float, float]
    """Of the reflection and of the action, uniform in [0, 1)."""


@dataclass(frozen=True)
class ToReflect:
    """A reflector's prompt, as somebody else wrote it."""

    prompt: Prompt
    draw: float


Question: TypeAlias = ToAct | ToReflect
Answer: TypeAlias = Move | Utterance


class Busy(Exception):
    """As many wait already as may."""


class Together:
    """The thread, and the queue before it.

    Args:
        agent: who answers; nobody else may use its players while this thread runs.
        max_waiting: questions without an answer yet, at most.

    """

    def __init__(self, agent: Agent, max_waiting: int) -> None:
        self._agent = agent
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[tuple[Question, Future[Answer]] | None] = queue.SimpleQueue()
        # as a daemon: a chat endpoint that hangs, and that nobody waits for any more, must not keep the process alive
        self._thread = threading.Thread(target=self._work, name="players", daemon=True)
        self.waiting = 0
        """Questions without an answer yet."""

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End, when what waits is answered."""
        self._queue.put(None)

    @overload
    async def ask(self, question: ToAct, timeout_s: float) -> Move: ...

    @overload
    async def ask(self, question: ToReflect, timeout_s: float) -> Utterance: ...

    async def ask(self, question: Question, timeout_s: float) -> Answer:
        """The answer to one question.

        Raises:
            Busy: too many wait.
            TimeoutError: it took too long.
            InvalidInput: the prompt is too long for the model.
            WorkFailed: a chat endpoint failed.

        """
        if self.waiting >= self._max_waiting:
            raise Busy
        answer: Future[Answer] = Future()
        self.waiting += 1
        try:
            self._queue.put((question, answer))
            return await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
        finally:  # who gave up is skipped by the thread
            self.waiting -= 1

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < MOST_TOGETHER and not self._queue.empty():
                if (job := self._queue.get()) is None:
                    self._queue.put(None)
                    break
                jobs.append(job)
            self._answer([(asked, answer) for asked, answer in jobs if answer.set_running_or_notify_cancel()])

    def _answer(self, jobs: Sequence[tuple[Question, Future[Answer]]]) -> None:
        if not jobs:
            return
        try:
            answers = play(self._agent, [question for question, _ in jobs])
        except InvalidInput as error:
            if len(jobs) > 1:  # only one of them may be at fault, and the others are not to suffer
                half = len(jobs) // 2
                self._answer(jobs[:half])
                self._answer(jobs[half:])
            else:
                jobs[0][1].set_exception(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who asked are told, and the thread goes on
            for _, answer in jobs:
                answer.set_exception(error)
        else:
            for (_, promised), found in zip(jobs, answers, strict=True):
                promised.set_result(found)


def play(agent: Agent, questions: Sequence[Question]) -> list[Answer]:
    """Answer different people's questions side by side: reflect for all who need it, then choose for all who act.

    Menus are shown in the order given, also by an agent that was trained on shuffled ones: to it, all are the same.

    Raises:
        InvalidInput: a prompt is too long for its model.
        WorkFailed: a chat endpoint failed.

    """
    said = _reflect(agent, questions)
    acting = {number: question for number, question in enumerate(questions) if isinstance(question, ToAct)}
    reflections = {n: said[n].text if n in said else question.reflection for n, question in acting.items()}
    menus = {n: make_menu(question.observation.actions, agent.layout.labels) for n, question in acting.items()}
    prompts = [agent.layout.policy(q.observation, q.past, reflections[n], menus[n]) for n, q in acting.items()]
    decisions = agent.policy.act(prompts, [question.draws[1] for question in acting.values()]) if prompts else []
    moves = {n: Move(reflections[n], menus[n], decision) for n, decision in zip(acting, decisions, strict=True)}
    return [moves[n] if n in moves else said[n] for n in range(len(questions))]


def _reflect(agent: Agent, questions: Sequence[Question]) -> dict[int, Utterance]:
    """What is said about those questions that need words, by their number."""
    if agent.reflector is None:
        return {}
    asked: dict[int, tuple[Prompt, float]] = {}
    for number, question in enumerate(questions):
        if isinstance(question, ToReflect):
            asked[number] = question.prompt, question.draw
        elif question.reflection is None:
            asked[number] = agent.layout.reflector(question.observation, question.past), question.draws[0]
    if not asked:
        return {}
    words = agent.reflector.reflect([prompt for prompt, _ in asked.values()], [draw for _, draw in asked.values()])
    return dict(zip(asked, words, strict=True))
