"""``Endpoints``: the players of a run that ask chat endpoints, with one common budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reflectrl.core.layout import CALLS
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.pipeline.folder import RunFolder, process_rank

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.chat import ChatClient


class Remote(Protocol):
    """A player that asks an endpoint."""

    client: ChatClient
    """Client of the endpoint."""


RemoteT = TypeVar("RemoteT", bound=Remote)


class Endpoints:
    """Players behind chat endpoints; each keeps a journal of the replies that its role has paid for.

    Args:
        run: folder of the journals.
        account: budget of all of them.

    """

    def __init__(self, run: RunFolder, account: Account) -> None:
        self._run = run
        self._account = account
        self._clients: list[ChatClient] = []

    @property
    def usage(self) -> Usage:
        """Calls of this process so far, with their cost."""
        return sum((client.usage for client in self._clients), Usage())

    def player(self, make: Callable[..., RemoteT], role: str, endpoint: Endpoint, **settings: Any) -> RemoteT:
        """Return ``make(endpoint, ...)``, a player of the given role."""
        player = make(endpoint, journal=self._journal(role), account=self._account, **settings)
        self._clients.append(player.client)
        return player

    def _journal(self, role: str) -> Journal:
        """Return the journal of a role; each process of a `torchrun` launch has its own."""
        rank = process_rank()
        return Journal(self._run / CALLS / (f"{role}-{rank}" if rank else role))
