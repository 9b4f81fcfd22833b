"""``Gate``: checks that every request to ``reflectrl serve`` passes first, and the form of error replies."""

from __future__ import annotations

import asyncio
import hmac
import traceback
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reflectrl.core.addresses import host_of, ip_address
from reflectrl.core.stop import tell_user
from reflectrl.serving.bounds import Bounds
from reflectrl.serving.wire import ErrorBody, ErrorReply


class RequestRefused(Exception):
    """A request that is answered with an error status.

    Args:
        status: HTTP status.
        sentence: message of the reply.
        code: machine-readable code as in OpenAI's errors.

    """

    def __init__(self, status: int, sentence: str, code: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


def error_reply(
    status: int, sentence: str, code: str | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return an error reply in OpenAI's format."""
    kind = "server_error" if status >= 500 else "invalid_request_error"
    reply = ErrorReply(error=ErrorBody(message=sentence, type=kind, code=code))
    return JSONResponse(reply.model_dump(), status, headers)


def busy(*, close: bool = False) -> JSONResponse:
    """Return the reply to a request that is one too many; ``close`` ends its connection as well."""
    headers = {"retry-after": "1", **({"connection": "close"} if close else {})}
    return error_reply(503, "too many requests are pending; try again in a second.", headers=headers)


class Gate:
    """Middleware that checks host and key, limits the size and the time of a body, and hides internal errors.

    FastAPI's ``HTTPBearer`` runs after the body is read, and for known paths only. Starlette's limit on bodies replies
    in plain text and keeps the connection open, and its ``TrustedHostMiddleware`` cannot allow all IP addresses.

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
        headers, body = Headers(scope=scope), b""
        refused = self._misdirected(headers) or self._unauthenticated(headers)
        if refused is None:
            try:
                body = await asyncio.wait_for(self._body(headers, receive), self._bounds.timeout_s)
            except TimeoutError:
                refused = error_reply(408, f"the request did not arrive within {self._bounds.timeout_s:g} s.")
            except RequestRefused as error:
                refused = error_reply(error.status, str(error))
        if refused is not None:
            refused.headers["connection"] = "close"  # otherwise the rest of the body would be read
            await refused(scope, receive, send)
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

    def _misdirected(self, headers: Headers) -> JSONResponse | None:
        """Refuse an unknown host name, which a web page may have pointed at this server (DNS rebinding)."""
        host = host_of(f"//{headers.get('host', '')}")
        if host in self._hosts or ip_address(host):
            return None
        known = ", ".join(sorted(self._hosts))
        sentence = f"the header Host names {host[:60]!r}; expected {known} or an IP address"
        return error_reply(421, f"{sentence}: use one of them, or start the server with --served-as NAME.")

    def _unauthenticated(self, headers: Headers) -> JSONResponse | None:
        if self._key is None:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._key.encode()):
            return None
        sentence = "the key is missing or wrong; send it as `Authorization: Bearer KEY`."
        return error_reply(401, sentence, "invalid_api_key", {"www-authenticate": "Bearer"})

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Return the whole body; one whose declared length is too large is not read."""
        body, more, max_bytes = bytearray(), True, self._bounds.max_body
        declared = headers.get("content-length", "")
        too_large = declared.isdecimal() and int(declared) > max_bytes
        while more and not too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestRefused(400, "the connection was closed before the request was complete.")
            body += message.get("body", b"")
            more, too_large = message.get("more_body", False), len(body) > max_bytes
        if too_large:
            raise RequestRefused(413, f"the request exceeds the limit of {max_bytes:,} bytes; send a shorter one.")
        return bytes(body)
