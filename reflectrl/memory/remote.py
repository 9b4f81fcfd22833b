"""``RemoteText``: a planner's language model behind a chat endpoint."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core.chat import Messages
from reflectrl.endpoint.account import Account
from reflectrl.endpoint.chat import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.prompts.chat import read_reflection


class RemoteText:
    """A chat model; the answer to a chat without a usable reply is empty, at most ``endpoint.max_rejected`` times."""

    def __init__(self, endpoint: Endpoint, *, journal: Journal | None = None, account: Account | None = None) -> None:
        """Send chats to ``endpoint``."""
        self.client = ChatClient(endpoint, journal, account)

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer a chat.

        Raises:
            WorkFailed: the endpoint failed, or too many calls were left without a usable reply.

        """
        replies = self.client.ask_many(chats, [read_reflection] * len(chats), list(map(repr, draws)), instead="")
        return [reply.value for reply in replies]
