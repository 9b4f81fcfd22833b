"""``RemoteModel``: a chat endpoint that summarises and rates."""

from __future__ import annotations

from collections.abc import Sequence

from reflectrl.core.chat import LabelChat, Messages
from reflectrl.endpoint.account import Account
from reflectrl.endpoint.chat import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal
from reflectrl.prompts.chat import read_reflection
from reflectrl.raters.scale import Scale

_UNRATED = -1


class RemoteModel:
    """A chat model; servers other than OpenAI's are constrained to the levels of the scale where they support it.

    A call that the server answers in none of its attempts is rejected like one that it answers without a rating;
    ``endpoint.max_rejected`` bounds both.
    """

    def __init__(
        self, endpoint: Endpoint, scale: Scale, *, journal: Journal | None = None, account: Account | None = None
    ) -> None:
        """Send chats to ``endpoint``, for levels of ``scale``."""
        self.client = ChatClient(endpoint, journal, account, skip_failures=True)
        self._scale = scale

    def summaries(self, chats: Sequence[Messages], draws: Sequence[float]) -> list[str]:
        """Return one summary a chat; empty for one that got no usable reply.

        Raises:
            WorkFailed: the endpoint cannot be used, or too many calls were left without a usable reply.

        """
        replies = self.client.ask_many(chats, [read_reflection] * len(chats), list(map(repr, draws)), instead="")
        return [reply.value for reply in replies]

    def ratings(self, chats: Sequence[LabelChat], draws: Sequence[float]) -> list[int | None]:
        """Return one level a chat; ``None`` for one that got no rating in all attempts; raises as ``summaries``."""
        reads = [self._scale.read] * len(chats)
        replies = self.client.ask_many(chats, reads, list(map(repr, draws)), instead=_UNRATED)
        return [None if reply.value == _UNRATED else reply.value for reply in replies]
