"""An agent for others: exported as a folder or a repository of the hub, or behind HTTP."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """Limits of the server's requests."""

    max_body: int = 131_072
    """Maximum size of a request body, in bytes."""
    max_waiting: int = 1024
    """Maximum number of pending requests."""
    max_idle: int = 1024
    """Number of connections that may be open in addition to those of pending requests."""
    timeout_s: float = 30.0
    """Seconds for the body of a request to arrive, and then for its reply."""
