"""``Endpoints``: the players of a run that ask chat endpoints, with one common budget."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

from reflectrl.core.layout import CALLS
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.pipeline.folder import RunFolder, process_rank

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.chat import ChatClient


Replies: TypeAlias = Literal["keep", "reuse", "forget"]
"""Whether the replies to calls are kept in the run folder, as by its stages, or only reused from there, or neither; a
server forgets them, and is not stopped by any number of rejected calls."""


class Remote(Protocol):
    """A player that asks an endpoint."""

    client: ChatClient
    """Client of the endpoint."""


RemoteT = TypeVar("RemoteT", bound=Remote)


class Endpoints:
    """Players behind chat endpoints; each has a journal of the replies that its role has paid for.

    Args:
        run: folder of the journals.
        account: budget of all of them.
        replies: use of the journals.

    """

    def __init__(self, run: RunFolder, account: Account, replies: Replies = "keep") -> None:
        self._run = run
        self._account = account
        self._replies = replies
        self._clients: list[ChatClient] = []

    @property
    def usage(self) -> Usage:
        """Calls of this process so far, with their cost."""
        return sum((client.usage for client in self._clients), Usage())

    def player(self, make: Callable[..., RemoteT], role: str, endpoint: Endpoint, **settings: Any) -> RemoteT:
        """Return ``make(endpoint, ...)``, a player of the given role."""
        if self._replies == "forget":
            endpoint = replace(endpoint, max_rejected=sys.maxsize)
            settings |= {"cache_size": 0} if "cache_size" in settings else {}
        player = make(endpoint, journal=self._journal(role), account=self._account, **settings)
        self._clients.append(player.client)
        return player

    def _journal(self, role: str) -> Journal:
        """Return the journal of a role; each process of a `torchrun` launch has its own."""
        if self._replies == "forget":
            return Journal()
        rank = process_rank()
        folder = self._run / CALLS / (f"{role}-{rank}" if rank else role)
        return Journal(folder, read_only=self._replies == "reuse")
