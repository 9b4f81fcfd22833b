"""Chats with a language model, as records: messages, and the error that sends a reply back to the model."""

from __future__ import annotations

Messages = list[dict[str, str]]
"""A chat as endpoints expect it: objects with ``role`` and ``content``."""


class BadReply(Exception):
    """A reply that breaks its format; the message is sent to the model and says what to answer instead."""
