"""Rollouts of verifiers in which a player of ours takes the place of the model. Needs the package to be imported."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import datasets
import verifiers as vf
from verifiers.types import Response, ResponseMessage

from reflectrl.core import InvalidInput
from reflectrl.core.text import one_line, shown


class Rollout(vf.Client):
    """A rollout of verifiers, whose model this is: it passes on what is asked, and waits for the reply."""

    def __init__(self, game: Any, example: Mapping[str, Any]) -> None:
        super().__init__(None)
        self._game, self._example = game, example
        self._task: asyncio.Task[Any] | None = None
        self._asked: asyncio.Queue[Sequence[Any]] = asyncio.Queue()
        self._said: asyncio.Queue[str] = asyncio.Queue()

    async def answer(self, words: str | None) -> tuple[Sequence[Any], Mapping[str, Any] | None]:
        """Give a reply, or begin; return the messages since then, and the result of a rollout that has ended."""
        if self._task is None:
            self._task = asyncio.create_task(self._game.run_rollout(self._example, self, "player", {}))
        if words is not None:
            self._said.put_nowait(words)
        asked = asyncio.create_task(self._asked.get())
        await asyncio.wait((asked, self._task), return_when=asyncio.FIRST_COMPLETED)
        result = None if asked.done() else self._task.result()
        messages = asked.result() if result is None else result["completion"] or ()
        asked.cancel()
        replies = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
        return messages[replies[-1] + 1 :] if words is not None and replies else messages, result

    async def leave(self) -> None:
        """Cancel the rollout."""
        if self._task is not None and self._task.cancel():
            await asyncio.wait((self._task,))

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


def made(environment: str, args: Mapping[str, Any]) -> Any:
    """Return an environment of verifiers; its constructor takes the process's signals, which are put back."""
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        with Failures():
            load = resolve_name(environment) if ":" in environment else partial(vf.load_environment, environment)
            game = load(**args)
        if not isinstance(game, vf.MultiTurnEnv):
            raise InvalidInput(
                f"{environment!r} is {shown(game)}; expected a MultiTurnEnv or SingleTurnEnv of verifiers."
            )
        game.build_dataset()
        game.build_eval_dataset()
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        if bars:
            datasets.enable_progress_bars()
    needs = {
        "tools": bool(game.tool_defs),
        "rewards of whole groups": game.requires_group_rollouts,
        "a judge": any(isinstance(rubric, vf.JudgeRubric) for rubric in _rubrics(game.rubric)),
    }
    for need in (need for need, needed in needs.items() if needed):
        raise InvalidInput(
            f"{environment!r} needs {need}, which a player who writes a line cannot have here; choose another."
        )
    return game


def _rubrics(rubric: Any) -> Iterator[Any]:
    yield rubric
    for part in getattr(rubric, "rubrics", ()):
        yield from _rubrics(part)


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
