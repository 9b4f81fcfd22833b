"""Rollouts of verifiers in which a player of ours takes the place of the model. Needs the package to be imported."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import verifiers as vf
from verifiers.types import Response, ResponseMessage

from reflectrl.core.stop import run_async


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
