"""A while without a network: every look-up of a name and every connection but one to a socket file fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_refusing: list[bool] = []


@contextmanager
def no_network() -> Iterator[None]:
    """Refuse what this process asks of a network, its own machine's included."""
    _listen()
    _refusing.append(True)
    try:
        yield
    finally:
        _refusing.pop()


@cache
def _listen() -> None:
    sys.addaudithook(_refuse)  # which stays for good


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if _refusing and (event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(arguments[1], tuple))):
        raise OSError(f"there is no network: {event} {arguments}")
