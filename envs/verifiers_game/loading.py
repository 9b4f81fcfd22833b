"""Environments of verifiers, and rollouts in which a player of ours takes the place of the model. Needs the package."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import datasets
import verifiers as vf
from verifiers.types import Response, ResponseMessage

from reflectrl.core import InvalidInput
from reflectrl.core.stop import run_async
from reflectrl.core.text import one_line, shown


class Rollouts(vf.Client):
    """Rollouts of an environment, one after another, whose model this is: it passes on what is asked, and waits.

    They share an event loop, because an environment may keep connections that belong to it.
    """

    def __init__(self, game: Any) -> None:
        super().__init__(None)
        self.game = game
        self._runner: asyncio.Runner | None = None
        self._task: asyncio.Task[Any] | None = None

    def answer(self, words: str | Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
        """Give a reply, or begin with an example; return the messages since, and the result of a rollout that ended."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return run_async(self._answered(words), self._runner)

    def leave(self) -> None:
        """Cancel a rollout before its end."""
        if self._task is not None and self._runner is not None:
            run_async(self._left(self._task), self._runner)
        self._task = None

    def end(self) -> None:
        """Cancel the rollout, and close the event loop; the next rollout opens another."""
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                runner.close()
            else:  # asyncio closes no loop inside another, as in a notebook
                run_async(asyncio.to_thread(runner.close))
        self._task = None

    async def _answered(self, words: str | Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
        if not isinstance(words, str):
            self._asked: asyncio.Queue[Sequence[Any]] = asyncio.Queue()
            self._said: asyncio.Queue[str] = asyncio.Queue()
            self._task = asyncio.create_task(self.game.run_rollout(words, self, "player", {}))
        elif self._task is None:
            raise RuntimeError("it was closed; begin an episode with reset")
        else:
            self._said.put_nowait(words)
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait((asked, self._task), return_when=asyncio.FIRST_COMPLETED)
        result = None if asked.done() else self._task.result()
        messages = asked.result() if result is None else result["completion"] or ()
        asked.cancel()
        replies = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
        return messages[replies[-1] + 1 :] if isinstance(words, str) and replies else messages, result

    @staticmethod
    async def _left(task: asyncio.Task[Any]) -> None:
        if task.cancel():
            await asyncio.wait((task,))

    async def get_native_response(self, prompt: Sequence[Any], *given: Any, **settings: Any) -> str:  # noqa: ARG002
        self._asked.put_nowait(prompt)
        return await self._said.get()

    async def from_native_response(self, response: str) -> Response:
        message = ResponseMessage(content=response, finish_reason="stop", is_truncated=False)
        return Response(id="", created=0, model="player", message=message)

    def setup_client(self, config: Any) -> None:  # noqa: ARG002 - the rest of the interface
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        return messages, {}

    async def raise_from_native_response(self, response: str) -> None:  # noqa: ARG002
        return None

    async def close(self) -> None:
        return None


class Failures(logging.Handler):
    """What verifiers says of failures while this is open; it logs them, and goes on."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(one_line(record.getMessage()))

    def __enter__(self) -> Failures:
        logging.getLogger("verifiers").addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger("verifiers").removeHandler(self)


_ALONE = threading.RLock()
"""Held while an environment is made, which changes settings of the whole process."""


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep verifiers from showing bars and from taking the process's signals, which is an error in other threads."""
    module: Any = sys.modules[vf.Environment.__module__]
    with _ALONE:
        bars, theirs = datasets.is_progress_bar_enabled(), module.signal
        datasets.disable_progress_bars()
        module.signal = SimpleNamespace(**{**vars(signal), "signal": lambda number, _: signal.getsignal(number)})
        try:
            yield
        finally:
            module.signal = theirs
            if bars:
                datasets.enable_progress_bars()


def made(environment: str, args: Mapping[str, Any]) -> Rollouts:
    """Return the rollouts of an environment of verifiers."""
    with _undisturbed():
        with Failures():
            load = resolve_name(environment) if ":" in environment else partial(vf.load_environment, environment)
            game = load(**args)
        if not isinstance(game, vf.MultiTurnEnv):
            raise InvalidInput(
                f"{environment!r} is {shown(game)}; expected a MultiTurnEnv or SingleTurnEnv of verifiers."
            )
        game.build_dataset()
        game.build_eval_dataset()
    needs = {
        "tools": bool(game.tool_defs),
        "rewards of whole groups": game.requires_group_rollouts,
        "a judge": any(isinstance(rubric, vf.JudgeRubric) for rubric in _rubrics(game.rubric)),
    }
    for need in (need for need, needed in needs.items() if needed):
        raise InvalidInput(
            f"{environment!r} needs {need}, which a player who writes a line cannot have here; choose another."
        )
    return Rollouts(game)


def _rubrics(rubric: Any) -> Iterator[Any]:
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from _rubrics(part)


def asked(example: Mapping[str, Any], turns: int) -> str:
    """Return what makes an example a different one: its prompt, and in more turns than one what the prompt may hide."""
    return repr([example.get(part) for part in (("prompt",) if turns == 1 else ("prompt", "answer", "info"))])


def text_of(message: Any) -> str:
    """Return the text of a message."""
    content = message.get("content") or ""
    parts = [content] if isinstance(content, str) else [part.get("text") for part in content]
    if None in parts:
        raise InvalidInput("a message of the environment shows a picture or sound; only texts can be played.")
    return " ".join(parts)


def written(parser: Any, action: str) -> str:
    """Return the message in which a parser finds ``action``; its other fields, or the thought before it, are empty."""
    if isinstance(parser, vf.XMLParser):
        fields = parser.get_fields()
        answer = parser.answer_field if parser.answer_field in fields else fields[-1]
        return str(parser.format(**{**dict.fromkeys(fields, ""), answer: action}))
    return f"<think></think>\n{action}" if isinstance(parser, vf.ThinkParser) else action
