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
from reflectrl.endpoint.thinking import mark_in, without_thinking

RETRIED_STATUSES = (408, 409, 425, 429)
"""HTTP statuses after which a request is retried, besides every 5xx."""
QUOTA_CODES = ("insufficient_quota", "billing_hard_limit_reached")
"""Error codes of an exhausted quota, which are never retried."""
PROMPT_CODES = ("context_length_exceeded", "exceed_context_size_error", "content_filter", "invalid_prompt")
"""Error codes that concern one prompt only."""
_TOO_LONG = re.compile(r"maximum (context|model) length", re.IGNORECASE)
"""What vLLM says of a prompt that is too long, in place of a code."""
_STATUS_OF = {
    **dict.fromkeys(("invalid_api_key", "InvalidApiKey", "authentication_error"), 401),
    **dict.fromkeys(("rate_limit_exceeded", "rate_limit_error", "Throttling.RateQuota", *QUOTA_CODES), 429),
    **dict.fromkeys((*PROMPT_CODES, "model_not_found"), 400),
}
"""Statuses of errors that name none, by their codes."""
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
        complaints: parts of the request that the server complains of, as ``Dialect`` names them.

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
        complaints: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s
        self.answered = answered
        self.final = final
        self.free = free
        self.status = status
        self.complaints = complaints


class Refused(WorkFailed):
    """The server refuses a request as it is, so no repetition of it can succeed.

    Args:
        sentence: reason, for messages.
        complaints: parts of the request that the server complains of, as ``Dialect`` names them.

    """

    def __init__(self, sentence: str, complaints: frozenset[str] = frozenset()) -> None:
        super().__init__(sentence)
        self.complaints = complaints


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
    """Return the text of a completion, without thinking; ``safe`` prepares what a server sent for messages.

    Raises:
        UnusableReply: the completion has no whole text, or one with thinking or marks that cannot be taken out.

    """
    said, finish = read_choice(completion, safe)
    answer = without_thinking(said).strip()
    if not answer or (finish == "length" and mark_in(answer)):
        advice = f"finish_reason {finish}; for 'length', raise max_tokens"
        raise UnusableReply(f"its reply is empty{' but for thinking' * bool(said.strip())} ({advice}).", answered=True)
    if mark := mark_in(answer):
        raise UnusableReply(
            f"its reply holds {safe(mark)!r}, which looks like thinking or a mark of the chat's format, and no player "
            "may read that; let the server separate it, or turn thinking off in extra_body of the endpoint.",
            answered=True,
        )
    return Text(answer, cut=finish == "length")


def read_choice(completion: Any, safe: Callable[[str], str]) -> tuple[str, str | None]:
    """Return the text of a completion as the model wrote it, empty if there is none, and its ``finish_reason``.

    Raises:
        UnusableReply: a server sent something else, the model refused, or the reply broke off with an error.

    """
    try:
        choice = completion["choices"][0]
        message, finish, error = choice["message"], choice.get("finish_reason"), choice.get("error")
        refusal = message.get("refusal")
        said = answer_text(message.get("content"))
    except (AttributeError, IndexError, KeyError, TypeError) as wrong:
        shown = safe(str(completion))
        raise UnusableReply(f"its reply is not a chat completion but {shown!r}.", answered=True) from wrong
    if error or finish == "error":
        limited = 429 * (_status(error) == 429)
        raise UnusableReply(f"its reply broke off: {safe(str(error or finish))}.", answered=True, status=limited)
    if refusal or finish == "content_filter":
        reason = safe(str(refusal or "finish_reason content_filter"))
        raise UnusableReply(f"the model refused: {reason}.", answered=True)
    return said or "", finish


def answer_text(content: Any) -> str | None:
    """Return the text in the ``content`` of a message: a text, or a list of parts, of which thinking is left out."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    texts = [part.get("text") for part in content if part.get("type") in ("text", "output_text")]
    return "".join(text for text in texts if isinstance(text, str))


def error_inside(completion: Any) -> tuple[int, str | None] | None:
    """Return status and code of an error that a server sent in place of a completion with status 200; else ``None``."""
    body = completion[0] if isinstance(completion, list) and completion else completion
    if not isinstance(body, dict) or body.get("choices"):
        return None
    error = body.get("error") or body
    code = next((each["code"] for each in (error, body) if isinstance(each, dict) and each.get("code")), None)
    status = _status(error) or _status(body) or _STATUS_OF.get(str(code))
    return None if status is None else (status, str(code))


def _status(error: Any) -> int | None:
    """Return the HTTP status that an error object names."""
    values = [error.get(name) for name in ("code", "status", "status_code")] if isinstance(error, dict) else []
    return next((int(str(value)) for value in values if re.fullmatch("[45][0-9][0-9]", str(value))), None)


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
    endpoint: Endpoint,
    status: int,
    code: str | None,
    headers: Mapping[str, str],
    message: str,
    complaints: frozenset[str] = frozenset(),
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
            sentence = f"it answered with status {status}: {message}."
            return UnusableReply(sentence, wait_s, status=status, complaints=complaints)
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
        return Refused(f"{endpoint} answered with status {status}: {advice}. It said: {message}", complaints)
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
