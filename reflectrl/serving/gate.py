"""``Gate``: what every request to ``reflectrl serve`` passes first, and the form of what it is refused with."""

from __future__ import annotations

import asyncio
import hmac
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reflectrl.core.addresses import host_of, ip_address
from reflectrl.core.stop import tell_user
from reflectrl.serving.wire import Failure, Fault


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
    """Before everything else: checks host and key, bounds the size and the time of a body, and hides what breaks.

    Starlette's own limit on bodies answers in plain text and keeps the connection, and its check of hosts knows no rule
    for all IP addresses.

    Args:
        app: what is behind it.
        bounds: what one client may ask.
        key: what clients must know; ``None`` to let everybody in.
        hosts: names that clients may call this server by, besides ``localhost`` and IP addresses.

    """

    def __init__(self, app: ASGIApp, bounds: Bounds, key: str | None, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._bounds = bounds
        self._key = key
        self._hosts = {"localhost", *map(str.lower, hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the beginning and end of the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, body = Headers(scope=scope), b""
        refused = self._misdirected(headers) or self._unauthenticated(headers)
        if refused is None:
            try:
                body = await asyncio.wait_for(self._body(headers, receive), self._bounds.timeout_s)
            except TimeoutError:
                refused = error_reply(408, f"the request did not arrive within {self._bounds.timeout_s:g} s.")
            except Refused as error:
                refused = error_reply(error.status, str(error))
        if refused is not None:
            refused.headers["connection"] = "close"  # or all that is still being sent would be read
            await refused(scope, receive, send)
            return
        await self._pass(scope, body, receive, send)

    def _misdirected(self, headers: Headers) -> JSONResponse | None:
        """Refuse a name that somebody else may have led here, such as the owner of a web page (DNS rebinding)."""
        host = host_of(f"//{headers.get('host', '')}")
        if host in self._hosts or ip_address(host):
            return None
        said = f"the header Host names {host[:60]!r}, and this server goes by {', '.join(sorted(self._hosts))} and IP "
        return error_reply(421, f"{said}addresses; call it by one of them, or start it with --allow-host NAME.")

    def _unauthenticated(self, headers: Headers) -> JSONResponse | None:
        if self._key is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key.encode()):
            return None
        said = "a key is needed, and none or a wrong one was given; send it as `Authorization: Bearer KEY`."
        return error_reply(401, said, "invalid_api_key", {"www-authenticate": "Bearer"})

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """All of it, or nothing of one that says that it is too large."""
        body, more, most = bytearray(), True, self._bounds.max_body
        declared = headers.get("content-length", "")
        too_large = declared.isdecimal() and int(declared) > most
        while more and not too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refused(400, "the request ended before its end.")
            body += message.get("body", b"")
            more, too_large = message.get("more_body", False), len(body) > most
        if too_large:
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
