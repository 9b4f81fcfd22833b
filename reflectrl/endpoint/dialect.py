"""``Dialect``: what one server wants to be asked in another way than most, as its refusals tell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reflectrl.core.chat import Messages
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.replies import Refused, UnusableReply

_LIMITS = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Names of the limit of tokens, each with its other name."""
_UNKNOWN = re.compile(
    r"un(supported|recogni[sz]ed|known|expected)|not (be )?(supported|permitted|allowed|recogni[sz]ed)|instead"
    r"|extra|forbidden|deprecated|does not support",
    re.IGNORECASE,
)
"""What a server says of a parameter that it does not know, rather than of its value."""
_SYSTEM = re.compile(
    r"system[ _]?(role|message|prompt|instruction)s?\b.{0,30}\b(not|n't|un)"
    r"|(role|support).{0,30}\bsystem\b|\bsystem\b.{0,30}role"
    r"|roles must alternate|only user(,| and| or).{0,30} (are|is) (supported|allowed)|developer instruction is not",
    re.IGNORECASE,
)
"""What servers and chat templates say of a model without a system role."""
_STREAM = re.compile(
    r"(only|must|require|enable|need)\w*\b.{0,30}\bstream|\bstream\w*\b.{0,30}\b(only|required|must|be true)"
    r"|non-?stream\w*\b.{0,30}\b(not|un)",
    re.IGNORECASE,
)
"""What servers say that send their replies in parts only."""


def complaints(text: str) -> frozenset[str]:
    """Return which parts of a request an error's text complains of: names of the limit, "system" and "stream"."""
    limits = [name for name in _LIMITS if re.search(rf"\b{name}\b", text)] if _UNKNOWN.search(text) else []
    others = [name for name, words in (("system", _SYSTEM), ("stream", _STREAM)) if words.search(text)]
    return frozenset([*limits, *others])


class Dialect:
    """Makes the requests to one server, and changes them once it has refused the usual form.

    Args:
        endpoint: the server.

    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._changes: frozenset[str] = frozenset()

    def body(self, chat: Messages, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON body of a call with further ``fields``."""
        body = {**self._endpoint.body(chat), **fields}
        body = {_LIMITS[name] if name in _LIMITS.keys() & self._changes else name: body[name] for name in body}
        if "system" in self._changes:
            body["messages"] = _without_system(body["messages"])
        if "stream" in self._changes:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body

    def refused(self, body: Mapping[str, Any], failure: Exception) -> bool:
        """Return whether to ask again in another form, after ``body`` was refused; that form is remembered."""
        if not isinstance(failure, Refused | UnusableReply):
            return False
        asked = {name for name in _LIMITS if name in body and _LIMITS[name] not in self._changes}
        asked |= {"system"} if any(message["role"] == "system" for message in body["messages"]) else set()
        asked |= set() if body.get("stream") else {"stream"}
        complained = failure.complaints & asked
        self._changes |= complained
        return bool(complained)


def _without_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages of a request with the system's text at the beginning of the first question."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [dict(message) for message in messages if message["role"] != "system"]
    asked = next(message for message in others if message["role"] == "user")
    if isinstance(asked["content"], str):
        asked["content"] = "\n\n".join([*system, asked["content"]])
    else:  # pictures before the text
        asked["content"] = [{"type": "text", "text": "\n\n".join(system)}, *asked["content"]]
    return others
