"""What the answers of a chat endpoint mean: words, what they cost, and whether a failure is worth another attempt."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reflectrl.core import WorkFailed
from reflectrl.core.addresses import host_of
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.endpoint import Endpoint

RETRIED = (408, 409, 425, 429)
"""Statuses worth another attempt, as is every 5xx."""
HOPELESS = ("insufficient_quota", "billing_hard_limit_reached", "model_not_found")
"""Error codes that no repetition mends, whatever their status."""
OF_THE_CALL = ("context_length_exceeded", "content_filter")
"""Error codes that concern one prompt and no other."""
LONGEST_WAIT_S = 120.0
"""A server that asks for a longer pause is not waited for."""


class Unusable(Exception):
    """An attempt that failed in a way that another may mend."""

    def __init__(
        self, sentence: str, wait_s: float | None = None, *, answered: bool = False, final: bool = False
    ) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s
        self.answered = answered
        """Whether the endpoint works, and only this call cannot be answered."""
        self.final = final
        """Whether another attempt would end in the same way."""


@dataclass(frozen=True)
class Words:
    """What a model wrote."""

    text: str
    cut: bool
    """Whether ``max_tokens`` ended it before its end."""


def words_of(completion: Any, safe: Callable[[str], str]) -> Words:
    """The words of a completion; ``safe`` makes what a server sent fit for a message.

    Raises:
        Unusable: there are none, whatever a broken server may have sent instead.

    """
    try:
        choice = completion["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text, refusal = message["content"], message.get("refusal")
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        shown = safe(str(completion))
        raise Unusable(f"its reply is not a chat completion but {shown!r}.", answered=True) from error
    if refusal or finish == "content_filter":
        said = safe(str(refusal or "finish_reason content_filter"))
        raise Unusable(f"the model refused: {said}.", answered=True)
    if not isinstance(text, str) or not text.strip():
        raise Unusable(f"its reply is empty (finish_reason {finish}; for 'length', raise max_tokens).", answered=True)
    return Words(text.strip(), cut=finish == "length")


def judge(endpoint: Endpoint, status: int, code: str | None, headers: Mapping[str, str], said: str) -> Exception:
    """Whether to try again after an error status (``Unusable``), or to stop (``WorkFailed``, with what to do)."""
    if 300 <= status < 400:
        to = host_of(headers.get("location", ""))[:100] or "another path of that server"
        advice = f"it redirects to {to}, where no prompt is sent; set base_url to the address that answers"
        return WorkFailed(f"{endpoint} answered with status {status}: {advice}.")
    if code in OF_THE_CALL:
        return Unusable(f"it answered with status {status}: {said}.", answered=True, final=True)
    if code not in HOPELESS and (status in RETRIED or status >= 500):
        wait_s = retry_after(headers)
        if wait_s is None or wait_s <= LONGEST_WAIT_S:
            return Unusable(f"it answered with status {status}: {said}.", wait_s)
        advice = f"it asks for a pause of {wait_s:.0f} seconds; run again after that"
    elif code in HOPELESS[:2]:
        advice = "the account's quota is used up; raise it, or use another endpoint"
    elif status in (401, 403):
        advice = f"the key was refused; put a valid one into the environment variable {endpoint.api_key_env}"
    elif status == 404 or code == "model_not_found":
        advice = "there is no such model or path; check endpoint.model and endpoint.base_url"
    else:
        advice = "the request was refused; check the endpoint's settings against what the server supports"
    return WorkFailed(f"{endpoint} answered with status {status}: {advice}. It said: {said}")


def tokens_of(completion: Any) -> Tokens:
    """What the endpoint counted."""
    usage = completion.get("usage") if isinstance(completion, dict) else None

    def count(holder: Any, name: str) -> int:
        number = holder.get(name) if isinstance(holder, dict) else None
        return number if type(number) is int and 0 < number < 10**12 else 0

    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    prompt = count(usage, "prompt_tokens")
    return Tokens(prompt, count(usage, "completion_tokens"), min(prompt, count(details, "cached_tokens")))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait, from either header it may use."""
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
