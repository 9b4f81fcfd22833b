"""``Gate``: what every request to ``reflectrl serve`` passes first, and the form of what it is refused with."""

from __future__ import annotations

import asyncio
import hmac
import traceback
from dataclasses import dataclass

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reflectrl.core.stop import tell_user
from reflectrl.serving.wire import Failure, Fault

FORGOTTEN = 64
"""How many times the size that a body may have is read and forgotten, before its client is hung up on."""


@dataclass(frozen=True)
class Bounds:
    """What one client may ask of a server."""

    max_body: int = 131_072
    """Bytes of a request."""
    max_waiting: int = 64
    """Requests that wait for the players at the same time."""
    timeout_s: float = 30.0
    """Seconds for a request to arrive, and then for its answer."""


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, sentence: str, code: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


def error_reply(
    status: int, sentence: str, code: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """An error as OpenAI words it."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    fault = Failure(error=Fault(message=sentence, type=kind, code=code))
    return JSONResponse(fault.model_dump(), status, headers)


class Gate:
    """Before everything else: asks for the key, bounds the size and the time of a body, and hides what breaks."""

    def __init__(self, app: ASGIApp, bounds: Bounds, key: str | None) -> None:
        self._app = app
        self._bounds = bounds
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the beginning and end of the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused, body = self._stranger(scope), b""
        if refused is None:
            try:
                body = await asyncio.wait_for(self._body(receive), self._bounds.timeout_s)
            except TimeoutError:
                refused = error_reply(408, f"the request did not arrive within {self._bounds.timeout_s:g} s.")
            except Refused as error:
                refused = error_reply(error.status, str(error))
        if refused is not None:
            await refused(scope, receive, send)
            return
        await self._pass(scope, body, receive, send)

    def _stranger(self, scope: Scope) -> JSONResponse | None:
        if self._key is None:
            return None
        scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key.encode()):
            return None
        said = "a key is needed, and none or a wrong one was given; send it as `Authorization: Bearer KEY`."
        return error_reply(401, said, "invalid_api_key", {"www-authenticate": "Bearer"})

    async def _body(self, receive: Receive) -> bytes:
        """All of it; what is too much is read and forgotten, since clients read no answer before they have sent all."""
        body, size, most = bytearray(), 0, self._bounds.max_body
        while size <= FORGOTTEN * most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the request ended before its end.")
            size += len(message.get("body", b""))
            if size <= most:
                body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        if size > most:
            raise Refused(413, f"the request has more than {most:,} bytes, which is the limit; send less.")
        return bytes(body)

    async def _pass(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        begun = False

        async def replay() -> Message:
            return waiting.pop() if waiting else await receive()

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, replay, watched)
        except Exception as error:  # noqa: BLE001 - a fault of ours: where it is goes to stderr, what it says may be private
            tell_user(f"error: a request failed with {type(error).__name__}\n{_frames(error)}")
            if not begun:
                await error_reply(500, "the server failed at this request; its log says where.")(scope, receive, send)


def _frames(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__))
