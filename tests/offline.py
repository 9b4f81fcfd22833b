"""A context without network: every name look-up and every connection fails, except those to socket files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_refusing: list[bool] = []


@contextmanager
def no_network() -> Iterator[None]:
    """Refuse all network access of this process, including to its own machine."""
    _listen()
    _refusing.append(True)
    try:
        yield
    finally:
        _refusing.pop()


@cache
def _listen() -> None:
    sys.addaudithook(_refuse)  # the hook cannot be removed


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _refusing and (event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(arguments[1], tuple))):
        raise OSError(f"there is no network: {event} {arguments}")
