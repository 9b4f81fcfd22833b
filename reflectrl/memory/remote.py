"""``RemoteText``: a model behind a chat endpoint that plans."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core.chat import Messages
from reflectrl.endpoint.account import Account
from reflectrl.endpoint.chat import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.prompts.chat import read_reflection


class RemoteText:
    """A chat model; a chat that gets no usable reply has an empty answer, and ``endpoint.max_rejected`` bounds them."""

    def __init__(self, endpoint: Endpoint, *, journal: Journal | None = None, account: Account | None = None) -> None:
        """Speak through ``endpoint``."""
        self.client = ChatClient(endpoint, journal, account)

    def write(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one answer a chat.

        Raises:
            WorkFailed: the endpoint failed, or too many calls were left without a usable reply.

        """
        replies = self.client.ask_many(chats, [read_reflection] * len(chats), list(map(repr, draws)), instead="")
        return [reply.value for reply in replies]
