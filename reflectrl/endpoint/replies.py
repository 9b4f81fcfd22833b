"""Reading a chat endpoint's replies: text, token counts, and how errors are handled."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reflectrl.core import WorkFailed
from reflectrl.core.addresses import host_of
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.endpoint import Endpoint

RETRIED_STATUSES = (408, 409, 425, 429)
"""HTTP statuses after which a request is retried, besides every 5xx."""
QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")
"""Error codes of an exhausted quota, which are never retried."""
PROMPT_CODES = ("context_length_exceeded", "exceed_context_size_error", "content_filter", "invalid_prompt")
"""Error codes that concern one prompt only."""
_TOO_LONG = re.compile(r"maximum (context|model) length", re.IGNORECASE)
"""What vLLM says of a prompt that is too long, in place of a code."""
_END_OF_THINKING = "</think>"
MAX_WAIT_S = 120.0
"""Longest pause that a server may ask for; a longer one ends the stage."""


class UnusableReply(Exception):
    """An attempt that failed, but may be repeated.

    Args:
        sentence: reason, for messages.
        wait_s: seconds that the server asks to wait.
        answered: True if the endpoint works, and only this call cannot be answered.
        final: True if every repetition would fail in the same way.
        free: True if the next request asks in another way, so that it does not count as a repetition.
        status: HTTP status of the answer; 0 for a failure without one.

    """

    def __init__(
        self,
        sentence: str,
        wait_s: float | None = None,
        *,
        answered: bool = False,
        final: bool = False,
        free: bool = False,
        status: int = 0,
    ) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s
        self.answered = answered
        self.final = final
        self.free = free
        self.status = status


class Refused(WorkFailed):
    """The server refuses a request as it is, so no repetition of it can succeed."""


@dataclass(frozen=True)
class Text:
    """Text of a completion."""

    text: str
    cut: bool
    """True if ``max_tokens`` truncated it."""
    words: str = ""
    """Whole reply of the model where ``text`` is only the part that could be used; else empty."""

    @property
    def sentences(self) -> Text:
        """The whole sentences of a truncated reply; the reply itself if it has none."""
        whole = re.match(r".*\w[.!?](?=\s|$)", self.text, re.DOTALL) if self.cut else None
        return Text(whole[0], cut=False, words=self.text) if whole else self


def read_text(completion: Any, safe: Callable[[str], str]) -> Text:
    """Return the text of a completion; ``safe`` prepares what a server sent for messages.

    Raises:
        UnusableReply: the completion has no text, or a server sent something else.

    """
    try:
        choice = completion["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content"), message.get("refusal")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        shown = safe(str(completion))
        raise UnusableReply(f"its reply is not a chat completion but {shown!r}.", answered=True) from error
    if refusal or finish == "content_filter":
        reason = safe(str(refusal or "finish_reason content_filter"))
        raise UnusableReply(f"the model refused: {reason}.", answered=True)
    if isinstance(text, str):
        text = without_thinking(text).strip()
    if not isinstance(text, str) or not text or text.startswith("<think>"):
        advice = f"finish_reason {finish}; for 'length', raise max_tokens"
        raise UnusableReply(f"its reply is empty ({advice}).", answered=True)
    return Text(text, cut=finish == "length")


def without_thinking(text: str) -> str:
    """Return a reply without the finished thinking of a model whose server does not separate it."""
    return text.rpartition(_END_OF_THINKING)[2]


def read_tokens(completion: Any) -> Tokens:
    """Return the token counts that the endpoint reports; 0 for counts that are absent or make no sense."""
    usage = completion.get("usage") if isinstance(completion, dict) else None

    def count(holder: Any, name: str) -> int:
        number = holder.get(name) if isinstance(holder, dict) else None
        return number if type(number) is int and 0 < number < 10**12 else 0

    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    prompt = count(usage, "prompt_tokens")
    # some servers count the tokens of a model's thinking in the total only
    completion = max(count(usage, "completion_tokens"), count(usage, "total_tokens") - prompt)
    return Tokens(prompt, completion, min(prompt, count(details, "cached_tokens")))


def classify_error(
    endpoint: Endpoint, status: int, code: str | None, headers: Mapping[str, str], message: str
) -> UnusableReply | WorkFailed:
    """Return the error for an HTTP error status: ``UnusableReply`` to retry, ``WorkFailed`` with advice to stop."""
    if 300 <= status < 400:
        target = host_of(headers.get("location", ""))[:100] or "another path of that server"
        advice = f"it redirects to {target}, where no prompt is sent; set base_url to the address that answers"
        return WorkFailed(f"{endpoint} answered with status {status}: {advice}.")
    if code in PROMPT_CODES or (status == 400 and _TOO_LONG.search(message)):
        return UnusableReply(f"it answered with status {status}: {message}.", answered=True, final=True)
    if code in QUOTA_CODES:
        advice = "the account's quota is used up; raise it, or use another endpoint"
    elif status == 404 or code == "model_not_found":
        advice = "there is no such model or path; check endpoint.model and endpoint.base_url"
    elif status in RETRIED_STATUSES or status >= 500:
        wait_s = retry_after(headers)
        if wait_s is None or wait_s <= MAX_WAIT_S:
            return UnusableReply(f"it answered with status {status}: {message}.", wait_s, status=status)
        advice = f"it asks for a pause of {wait_s:.0f} seconds; run again after that"
    elif status in (401, 403):
        variable = endpoint.key_variable
        advice = (
            f"the key was refused; put a valid one into the environment variable {variable}"
            if variable
            else "it needs a key; put one into an environment variable, and name that in api_key_env of the endpoint"
        )
    else:
        advice = "the request was refused; check the endpoint's settings against what the server supports"
        return Refused(f"{endpoint} answered with status {status}: {advice}. It said: {message}")
    return WorkFailed(f"{endpoint} answered with status {status}: {advice}. It said: {message}")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that a server asks to wait, from ``retry-after-ms`` or ``retry-after``; ``None`` if absent."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
