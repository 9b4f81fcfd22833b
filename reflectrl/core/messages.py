"""Chats with a language model: their messages, and the error that asks the model for another reply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reflectrl.core.types import Image

Messages = list[dict[str, str]]
"""A chat as endpoints expect it: objects with ``role`` and ``content``."""
DECORATION = "`'\"*()[]. \t\r\n"
"""Characters around an answer that do not change its meaning, and are stripped from both ends."""


class LabelChat(Messages):
    """A chat that asks for one label of a menu; a server can constrain the reply to these labels.

    Args:
        messages: the chat.
        labels: (n,) label of each action of the menu.
        actions: (n,) the actions.
        strict: read no label from a reply that names several: a guess would be worse than no answer.
    """

    def __init__(
        self, messages: Iterable[dict[str, str]], labels: Sequence[str], actions: Sequence[str], *, strict: bool = False
    ) -> None:
        super().__init__(messages)
        self.labels = tuple(labels)
        self.actions = tuple(actions)
        self.strict = strict


class PicturedChat(Messages):
    """A chat whose first question shows ``images`` before its text."""

    def __init__(self, messages: Iterable[dict[str, str]], images: Sequence[Image]) -> None:
        super().__init__(messages)
        self.images = tuple(images)


class TokenPrompt(Messages):
    """A text as token ids, which a server's model continues (``/v1/completions``): its reply is what follows.

    Args:
        ids: (n,) token ids, with the special tokens that begin every text.
        end: token that ends the reply.
        seed: seed of the reply's sampling, below 2**53.
        allowed: the tokens of which the reply is one; empty for a reply of any tokens.
        logprobs: whether to ask for the log-probabilities of the reply's tokens.
        more: further fields of the request, which replace those of the endpoint.
    """

    def __init__(
        self,
        ids: Sequence[int],
        *,
        end: int,
        seed: int = 0,
        allowed: Sequence[int] = (),
        logprobs: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__([{"role": "tokens", "content": " ".join(map(str, ids))}])
        self.ids = tuple(ids)
        self.end = end
        self.seed = seed
        self.allowed = tuple(allowed)
        self.logprobs = logprobs
        self.more = dict(more or {})


def asked_again(chat: Messages, reply: str, complaint: str) -> Messages:
    """Return ``chat`` extended by an unusable reply and a complaint that asks the model for another one."""
    longer = [*chat, {"role": "assistant", "content": reply}, {"role": "user", "content": complaint}]
    if isinstance(chat, PicturedChat):
        return PicturedChat(longer, chat.images)
    if not isinstance(chat, LabelChat):
        return longer
    return LabelChat(longer, chat.labels, chat.actions, strict=chat.strict)


class BadReply(Exception):
    """A reply that breaks its format; the message is sent to the model and says what to answer instead."""
