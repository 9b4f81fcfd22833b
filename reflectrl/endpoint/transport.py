"""Connections of the chat client: no redirects, bounded replies, and a notice while a server is silent."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx2

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import without_credentials
from reflectrl.endpoint.replies import UnusableReply

MAX_REPLY_BYTES = 4 * 2**20
"""Maximum size of a reply; a chat completion of a million tokens is about as large."""
MAX_BATCH_FILE_BYTES = 2**30
"""Maximum size of a file of batch results, which holds up to 50,000 replies."""
_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_PROXY = re.compile(r"(\w+://[^\s/\[]|[^\s/:\[]+:\d|\[[0-9a-f:]+\]:\d|\w+://\S*\[[0-9a-f:]+\])", re.IGNORECASE)
"""Beginning of a proxy's address: a scheme and a host, or a host and a port."""


def open_http() -> httpx2.AsyncClient:
    """Create the HTTP client with the proxy and the certificates of the environment; nothing is sent.

    Raises:
        InvalidInput: an environment variable for proxies or certificates cannot be used.

    """
    for name in _set(*_PROXIES):
        if not _PROXY.match(os.environ[name]):
            raise InvalidInput(
                f"the environment variable {name} does not hold the address of a proxy; expected one like "
                "http://proxy.example:3128: correct it, or unset it."
            )
    try:
        return httpx2.AsyncClient(
            timeout=None,  # each attempt has its own deadline
            limits=_LIMITS,
            follow_redirects=False,  # prompts are sent only to the server that the recipe names
            headers={"accept-encoding": "identity"},  # a few compressed bytes could become gigabytes
            event_hooks={"response": [_bound]},
        )
    except (ValueError, OSError, ImportError, httpx2.InvalidURL) as error:
        reason = without_credentials(f"{type(error).__name__}: {error}").rstrip(". ")
        names = ", ".join(_set(*_PROXIES, "NO_PROXY", *_CERTIFICATES))
        raise InvalidInput(
            f"no connection can be set up with the environment variables {names} ({reason}); correct the one that is "
            "wrong, or unset it."
        ) from None


def through_proxies() -> str:
    """Return ", through" and the environment variables that set a proxy, for messages; empty without any."""
    return f", through {', '.join(names)}" if (names := _set(*_PROXIES)) else ""


def was_sent(cause: object) -> bool:
    """Return whether a request may have reached the server, of a connection error with this cause."""
    return not isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ProxyError)


def _set(*names: str) -> list[str]:
    """Return those of ``names`` that are set, in upper or lower case."""
    return [name for name in (*names, *map(str.lower, names)) if os.environ.get(name)]


async def _bound(response: httpx2.Response) -> None:
    """Make reading the body of ``response`` fail once it exceeds the size limit."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise UnusableReply(f"its reply is compressed ({encoding[:20]!r}), which was not asked for.", answered=True)
    is_batch = response.request.url.path.endswith("/content")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream, MAX_BATCH_FILE_BYTES if is_batch else MAX_REPLY_BYTES)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._max_bytes:
                raise UnusableReply(f"its reply exceeds the limit of {self._max_bytes:,} bytes.", answered=True)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class Silence:
    """Reports through ``tell`` that the server ``who``, which may be slow or still load its model, does not reply.

    ``notice_s`` are the seconds until the first message; they double with each further one until a reply comes.
    """

    def __init__(self, who: str, notice_s: float, tell: Callable[[str], None]) -> None:
        self._who = who
        self._notice_s = notice_s
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def expect(self) -> None:
        """Start waiting: a request was sent."""
        if self._timer is None:
            self._wait(self._notice_s, self._notice_s)

    def end(self, *, waiting: bool = False) -> None:
        """End the silence: a reply came, or all work ended. ``waiting`` for further replies begins the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting:
            self.expect()

    def _wait(self, seconds: float, waited: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._say, waited)

    def _say(self, waited: float) -> None:
        self._tell(f"still waiting for a reply from {self._who} ({waited:g} s).")
        self._wait(waited, 2 * waited)


def hang_up(runner: asyncio.Runner, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close the connections and the event loop of a client that was deleted."""

    def finish() -> None:
        with runner:
            runner.run(close())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        finish()
    else:  # garbage collection ran inside another event loop
        thread = threading.Thread(target=finish)
        thread.start()
        thread.join()
