"""Messages of a chat with pictures, in the form of the chat API: data URIs before the text of the first question."""

from __future__ import annotations

import base64
from typing import Any

from reflectrl.core import Image
from reflectrl.core.chat import Messages, PicturedChat

PICTURE_TOKENS = 50_000
"""Tokens reserved for a picture, since models count them in different ways; the cost is that of the tokens used."""


def sent(chat: Messages) -> list[dict[str, Any]]:
    """Return a chat as the ``messages`` of a request."""
    messages: list[dict[str, Any]] = [*chat]
    if isinstance(chat, PicturedChat):
        asked = next(place for place, message in enumerate(chat) if message["role"] == "user")
        text = {"type": "text", "text": chat[asked]["content"]}
        messages[asked] = {"role": "user", "content": [*map(_part, chat.images), text]}
    return messages


def shown(chat: Messages) -> list[str]:
    """Return the hashes of the pictures of a chat."""
    return [image.sha256 for image in chat.images] if isinstance(chat, PicturedChat) else []


def _part(image: Image) -> dict[str, Any]:
    uri = f"data:image/png;base64,{base64.b64encode(image.data).decode()}"
    return {"type": "image_url", "image_url": {"url": uri}}
