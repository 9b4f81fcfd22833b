"""``Gate``: checks that every request to ``reflectrl serve`` passes first, and the form of error replies."""

from __future__ import annotations

import asyncio
import hmac
import traceback
from collections.abc import Iterable, Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reflectrl.core.addresses import host_of, ip_address
from reflectrl.core.stop import tell_user
from reflectrl.serving.bounds import Bounds
from reflectrl.serving.wire import ErrorReply


def error_reply(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error reply in FastAPI's format."""
    return JSONResponse(ErrorReply(detail=sentence).model_dump(), status, headers)


class Gate:
    """Middleware that checks host and key, limits the size and the time of a body, and hides internal errors.

    FastAPI's ``HTTPBearer`` runs after the body is read, and for known paths only; Starlette's
    ``TrustedHostMiddleware`` cannot allow all IP addresses.

    Args:
        app: the application behind it.
        bounds: limits of a request.
        key: bearer key that clients must send; ``None`` for no check.
        hosts: host names that clients may use, besides ``localhost`` and IP addresses.

    """

    def __init__(self, app: ASGIApp, bounds: Bounds, key: str | None, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._bounds = bounds
        self._key = key
        self._hosts = {"localhost", *map(str.lower, hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or pass on an event of the application's lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            self._check_host(headers)
            self._check_key(headers)
            body = await self._body(receive)
        except HTTPException as refused:
            reply = error_reply(refused.status_code, refused.detail, refused.headers)
            reply.headers["connection"] = "close"  # otherwise the rest of the body would be read
            await reply(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        try:
            await self._app(scope, replay, send)
        except Exception as error:  # noqa: BLE001 - a bug: its place goes to stderr, its message may hold private data
            frames = "".join(traceback.format_tb(error.__traceback__))
            tell_user(f"error: a request failed with {type(error).__name__}\n{frames}")
            await error_reply(500, "the server failed at this request; its log says where.")(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        """Refuse an unknown host name, which a web page may have pointed at this server (DNS rebinding)."""
        host = host_of(f"//{headers.get('host', '')}")
        if host not in self._hosts and not ip_address(host):
            known = ", ".join(sorted(self._hosts))
            sentence = f"the header Host names {host[:60]!r}; expected {known} or an IP address"
            raise HTTPException(421, f"{sentence}: use one of them, or start the server with --served-as NAME.")

    def _check_key(self, headers: Headers) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), (self._key or "").encode())
        if self._key is not None and not right:
            sentence = "the key is missing or wrong; send it as `Authorization: Bearer KEY`."
            raise HTTPException(401, sentence, {"www-authenticate": "Bearer"})

    async def _body(self, receive: Receive) -> bytes:
        body, more, bounds = bytearray(), True, self._bounds
        try:
            async with asyncio.timeout(bounds.timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the connection was closed before the request was complete.")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > bounds.max_body:
                        sentence = f"the request exceeds the limit of {bounds.max_body:,} bytes; send a shorter one."
                        raise HTTPException(413, sentence)
        except TimeoutError:
            raise HTTPException(408, f"the request did not arrive within {bounds.timeout_s:g} s.") from None
        return bytes(body)
