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
    """A chat model; a chat that gets no usable reply, or none at all, is answered by an empty text.

    ``endpoint.max_rejected`` bounds both.
    """

    def __init__(self, endpoint: Endpoint, *, journal: Journal | None = None, account: Account | None = None) -> None:
        """Send chats to ``endpoint``."""
        self.client = ChatClient(endpoint, journal, account, skip_failures=True)

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer a chat.

        Raises:
            WorkFailed: the endpoint cannot be used, or too many calls were left without a usable reply.

        """
        replies = self.client.ask_many(chats, [read_reflection] * len(chats), list(map(repr, draws)), instead="")
        return [reply.value for reply in replies]
