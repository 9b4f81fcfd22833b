"""``open_http``: the HTTP client below the chat client. It follows no redirect and reads no reply without end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import httpx2

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import without_credentials
from reflectrl.endpoint.answers import Unusable

MAX_REPLY_BYTES = 4 * 2**20
"""A chat completion of a million tokens is about as large."""
MAX_BATCH_FILE_BYTES = 2**30
"""The results of a batch of 50,000 calls."""
_LIMITS = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


def open_http() -> httpx2.AsyncClient:
    """Prepare connections with the proxy and the certificates that the environment asks for; nothing is sent.

    Raises:
        InvalidInput: variables of the environment that cannot be used.

    """
    try:
        return httpx2.AsyncClient(
            timeout=None,  # an attempt has a deadline of its own
            limits=_LIMITS,
            follow_redirects=False,  # prompts go where the recipe says, and nowhere else
            headers={"accept-encoding": "identity"},  # a few compressed bytes could become gigabytes
            event_hooks={"response": [_bound]},
        )
    except (ValueError, OSError, ImportError, httpx2.InvalidURL) as error:
        said = without_credentials(f"{type(error).__name__}: {error}").rstrip(". ")
        raise InvalidInput(
            f"no connection can be set up with the environment variables {_set(*_PROXIES, *_CERTIFICATES)} ({said}); "
            "correct the one that is wrong, or unset it."
        ) from None


def proxies() -> str:
    """The environment variables that name a proxy, for messages; empty where there are none."""
    return _set(*_PROXIES[:3])


def _set(*names: str) -> str:
    """Those of ``names`` that are set; for proxies small letters count too."""
    return ", ".join(name for name in (*names, *map(str.lower, names)) if os.environ.get(name))


async def _bound(response: httpx2.Response) -> None:
    """Have the body of ``response``, which nobody has read yet, end with an error where it grows too large."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise Unusable(f"its reply is compressed ({encoding[:20]!r}), which was not asked for.", answered=True)
    batch = response.request.url.path.endswith("/content")
    most = MAX_BATCH_FILE_BYTES if batch else MAX_REPLY_BYTES
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream, most)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, most: int) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._most:
                raise Unusable(f"its reply has more than {self._most:,} bytes, which is the limit.", answered=True)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
