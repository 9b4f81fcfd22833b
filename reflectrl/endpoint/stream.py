"""Completions that arrive in parts, as server-sent events, because a server sends them in no other way."""

from __future__ import annotations

import json
import re
from typing import Any

from reflectrl.endpoint.replies import answer_text

_DONE = "[DONE]"


def joined(body: object) -> object:
    """Return a completion of which ``body`` is the stream, as if it had been sent whole; any other body as it is.

    Raises:
        ValueError: the stream is broken, or not one of completions.

    """
    if not isinstance(body, str) or not re.match(r"\s*(data|event|id|retry)?:", body):
        return body
    events = [_data(event) for event in re.split(r"(?:\r\n|\r|\n){2,}", body)]
    try:
        return _join([json.loads(data) for data in events if data and data != _DONE], ended=_DONE in events)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("not a stream of completions") from error


def _data(event: str) -> str:
    lines = [line for line in re.split(r"\r\n|\r|\n", event) if line.startswith("data:")]
    return "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines).strip()


def _join(chunks: list[dict[str, Any]], *, ended: bool) -> dict[str, Any]:
    text, refusal, finish, usage = "", "", None, None
    tokens: list[Any] = []
    error = next((chunk["error"] for chunk in chunks if chunk.get("error")), None)
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or {}
            text += answer_text(delta.get("content")) or ""
            refusal += delta.get("refusal") or ""
            finish = choice.get("finish_reason") or finish
            error = error or choice.get("error")
            tokens += (choice.get("logprobs") or {}).get("content") or ()
    if not any(chunk.get("choices") for chunk in chunks):
        return {"error": error, "usage": usage}
    if error is None and finish is None and not ended:
        error = "its stream ended before its last part"
    message = {"role": "assistant", "content": text, "refusal": refusal or None}
    choice = {"message": message, "finish_reason": finish, "error": error, "logprobs": {"content": tokens}}
    return {"choices": [choice], "usage": usage}
