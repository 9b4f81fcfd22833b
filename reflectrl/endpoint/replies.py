"""Reading a chat endpoint's replies: text, token counts, and how errors are handled."""

from __future__ import annotations

import email.utils
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from reflectrl.core import WorkFailed
from reflectrl.core.addresses import host_of
from reflectrl.core.messages import DECORATION, LabelChat, Messages
from reflectrl.core.text import holds
from reflectrl.endpoint.account import Tokens
from reflectrl.endpoint.endpoint import Endpoint

_NAME = r"(?:\w+[:|_])?(?:think|thinking|thought|thoughts|reasoning|scratchpad)"
_END = re.compile(
    rf"(?i:</{_NAME}>)"  # most models; Gemini: thought; Seed-OSS: seed:think; MiniMax M3: mm:think
    r"|\[/THINK\]"  # Magistral and Ministral
    r"|◁/think▷"  # Kimi-VL
    r"|<\|(?:END_THINKING|end_of_thought|inner_suffix)\|>"  # Command A, OpenThinker, Apertus
    r"|<channel\|>"  # Gemma 4
    r"|<\|channel\|>\s*final\b[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>"  # gpt-oss
    r"|\A\s*(?:analysis|commentary)(?=[A-Z]).*assistant\s*final"  # gpt-oss, from a server that leaves out its marks
    r"|\A\s*Here(?:'s| is) my thought process:.*?Here(?:'s| is) my response:",  # Granite 3.2
    re.DOTALL,
)
"""What ends the thinking; the beginning is often a part of the prompt, and so absent."""
_AROUND = re.compile(
    r"<\|(?:START_RESPONSE|END_RESPONSE|begin_of_solution|end_of_solution|begin_of_box|end_of_box)\|>"
    r"|\A\s*<(?:answer|response)>|</(?:answer|response)>\s*\Z"
)
"""Marks around the answer of Command A, OpenThinker, GLM-4.5V, Hunyuan and ERNIE 4.5."""
_END_OF_TURN = re.compile(
    r"(?:\s*(?:</s>|<eos>|<end_of_turn>|<turn\|>|<｜end▁of▁sentence｜>"
    r"|<\|(?:im_end|end|return|endoftext|end_of_text|eot_id|eom_id|END_OF_TURN_TOKEN|user|observation)\|>))+\s*\Z"
)
"""What ends a reply where a server does not leave it out."""
_MARK = re.compile(
    rf"(?i:</?{_NAME}>)|\[/?THINK\]|◁/?think▷"
    r"|<\|[\w:/.▁ -]{1,40}\|?>|<[\w:/.▁ -]{1,40}\|>|<｜[^｜<>]{1,40}｜>"
    r"|\A\s*(?:analysis|commentary)(?=[A-Z])|\A\s*Here(?:'s| is) my thought process:"
)
"""What looks like a mark of thinking or of a chat's format."""


def without_thinking(text: str) -> str:
    """Return the answer in a reply, without finished thinking and the known marks around it."""
    end = max((found.end() for found in _END.finditer(text)), default=0)
    return _AROUND.sub("", _END_OF_TURN.sub("", text[end:]))


def mark_in(answer: str) -> str | None:
    """Return the first thing in an answer that looks like a mark of thinking or of a chat's format, if there is one."""
    found = _MARK.search(answer)
    return found[0].strip() if found else None


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


@dataclass(eq=False)
class UnusableReply(Exception):
    """An attempt that failed, but may be repeated."""

    sentence: str
    _: KW_ONLY
    wait_s: float | None = None
    """Seconds that the server asks to wait."""
    answered: bool = False
    """True if the endpoint works, and only this call cannot be answered."""
    final: bool = False
    """True if every repetition would fail in the same way."""
    free: bool = False
    """True if the next request asks in another way, so that it does not count as a repetition."""
    status: int = 0
    """HTTP status of the answer; 0 for a failure without one."""
    complaints: frozenset[str] = frozenset()
    """Parts of the request that the server complains of, as ``Dialect`` names them."""


class Refused(WorkFailed):
    """The server refuses a request as it is, so no repetition of it can succeed.

    ``complaints`` are the parts of the request that it complains of, as ``Dialect`` names them.
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


def read_continued(completion: Any, safe: Callable[[str], str]) -> Text:
    """Return how a server's model continued token ids: JSON for ``Continued``, and the words; no length is too short.

    Raises:
        UnusableReply: a server sent something else, or the text broke off with an error.
    """
    try:
        choice = completion["choices"][0]
        said, ids, finish = choice["text"], choice.get("token_ids"), choice.get("finish_reason")
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        kept = Continued(str(said), None if ids is None else [*map(int, ids)], [*map(float, logprobs)])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as wrong:
        shown = safe(str(completion))
        raise UnusableReply(f"its reply is not a completion but {shown!r}.", answered=True) from wrong
    if finish not in ("stop", "length", None):
        raise UnusableReply(f"its reply broke off (finish_reason {safe(str(finish))}).")
    return Text(json.dumps(asdict(kept)), cut=False)


@dataclass(frozen=True)
class Continued:
    """How a server's model continued token ids."""

    text: str
    ids: list[int] | None
    """Their token ids, perhaps with the one that ends them; ``None`` from a server that tells none."""
    logprobs: list[float]
    """Log-probability of each token, in nats, where they were asked for."""


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
            return UnusableReply(sentence, wait_s=wait_s, status=status, complaints=complaints)
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


WAYS = ("schema", "grammar", "logprobs", "text")
"""Ways to constrain a reply, from the one that most servers support to the one that every server does."""
TOP_LOGPROBS = 20
"""Number of most likely tokens to request; OpenAI's chat API allows no more."""


class LabelWays:
    """Chooses the way in which one server is asked for labels: the first of ``ways`` that it supports.

    OpenAI and Azure are asked by "text" only.
    """

    def __init__(self, endpoint: Endpoint, ways: Sequence[str] = WAYS) -> None:
        self.lenient = not endpoint.is_openai
        """True if labels are read from other words, and sentences from a reply that ``max_tokens`` cut off."""
        self._left = list(ways if self.lenient else ("text",))
        self._obeyed = False

    def of(self, chat: Messages) -> str:
        """Return the way for ``chat``; "text" for a chat that does not ask for a label."""
        if not isinstance(chat, LabelChat) or (self._left[0] == "logprobs" and _ambiguous(chat.labels)):
            return "text"
        return self._left[0]

    def refused(self, way: str, failure: Exception, attempt: int) -> bool:
        """Return whether to try another way after a failed request; only a way that never worked is given up.

        A server reports a way that it does not support by a status of 4xx, or by 5xx on each attempt.
        """
        if self._obeyed or way == "text":
            return False
        broken = isinstance(failure, UnusableReply) and failure.status >= 500 and failure.status != 503
        return (isinstance(failure, Refused) or (broken and attempt > 1)) and self._give_up(way)

    def read(self, way: str, chat: LabelChat, completion: Any, safe: Callable[[str], str]) -> Text:
        """Return the label in a completion that was requested in ``way``; for "text", the reply may be no label.

        Raises:
            UnusableReply: the completion has no label; the repetition is free if it uses the next way.
        """
        if way == "text":
            return self._read_text(chat, read_text(completion, safe))
        words, finish = read_choice(completion, safe)
        said = without_thinking(words)
        label = _of_logprobs(completion, chat.labels) if way == "logprobs" else _FROM[way](said, chat.labels)
        self._obeyed = self._obeyed or label is not None
        if label is None:
            # a way that worked is not given up because one reply is empty or was cut off
            unfinished = not said.strip() or (finish == "length" and way != "logprobs")  # which wants one token
            free = not (self._obeyed and unfinished) and self._give_up(way)
            label = _plain(said, chat)  # a label in spite of an ignored constraint
            if label is None:
                why = "its reply is none of the labels, to which the request limits it."
                raise UnusableReply(why, answered=True, free=free)
        return Text(label, cut=False)

    def _read_text(self, chat: LabelChat, reply: Text) -> Text:
        if not self.lenient or chat.strict or _plain(reply.text, chat) is not None:
            return reply
        label = read_leniently(reply.text, chat)
        return reply if label is None else Text(label, cut=False, words=reply.text)

    def _give_up(self, way: str) -> bool:
        """Switch to the next way, unless another call already did; return False if there is none."""
        if way == self._left[0] and len(self._left) > 1:
            del self._left[0]
            self._obeyed = False
        return way != self._left[0]


def fields(way: str, chat: Messages) -> dict[str, Any]:
    """Return the fields of a request that constrain its reply to the labels of ``chat``."""
    if way == "text" or not isinstance(chat, LabelChat):
        return {}
    if way == "grammar":  # llama.cpp's format
        return {"grammar": f"root ::= {' | '.join(json.dumps(label) for label in chat.labels)}"}
    if way == "logprobs":
        return {"logprobs": True, "top_logprobs": TOP_LOGPROBS, "max_tokens": 1}
    label = {"type": "string", "enum": list(chat.labels)}
    schema = {"type": "object", "properties": {"label": label}, "required": ["label"], "additionalProperties": False}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "choice", "strict": True, "schema": schema}}
    }


def _of_schema(said: str, labels: tuple[str, ...]) -> str | None:
    try:
        label = str(json.loads(said)["label"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    return label if label in labels else None


def _of_text(said: str, labels: tuple[str, ...]) -> str | None:
    label = said.strip(DECORATION)
    return label if label in labels else None


def _plain(reply: str, chat: LabelChat) -> str | None:
    """Return the label of a reply that is a label or a whole line of the menu, apart from ``DECORATION`` around it."""
    bare = reply.strip(DECORATION)
    for label, action in zip(chat.labels, chat.actions, strict=True):
        if bare in (label.strip(DECORATION), f"{label}. {action}".strip(DECORATION)):
            return label
    return None


def _of_logprobs(completion: Any, labels: tuple[str, ...]) -> str | None:
    """Return the label that was sampled, else the most likely one of those reported."""
    try:
        first = completion["choices"][0]["logprobs"]["content"][0]
        reported = [(float(each["logprob"]), str(each["token"]).strip(DECORATION)) for each in first["top_logprobs"]]
        sampled = str(first["token"]).strip(DECORATION)
    except (IndexError, KeyError, TypeError, ValueError, RecursionError):
        return None
    known = [(logprob, token) for logprob, token in reported if token in labels]
    return sampled if sampled in labels else max(known)[1] if known else None


_FROM = {"schema": _of_schema, "grammar": _of_text}


def read_leniently(reply: str, chat: LabelChat) -> str | None:
    """Return the label that a reply with other words means; ``None`` if it is ambiguous.

    It is the label that the reply begins with, or that of the only action it names, or the only number among labels.
    """
    begun = re.match(r"\W*(\w+)\W*?(?:[.:)\]]|$)", reply, re.MULTILINE)
    if begun and begun[1] in chat.labels:
        action = chat.actions[chat.labels.index(begun[1])]
        is_list = len(re.findall(r"^\W*\d+[.)]", reply, re.MULTILINE)) > 1  # of the menu, or of thoughts
        if not is_list or holds(reply.strip().splitlines()[0], action):
            return begun[1]
    named = [action for action in chat.actions if holds(reply, action)]
    longest = [action for action in named if not any(holds(other, action) for other in named if other != action)]
    if len(longest) == 1:
        return chat.labels[chat.actions.index(longest[0])]
    numbers = {number for number in re.findall(r"\b\d+\b", reply) if number in chat.labels}
    return numbers.pop() if len(numbers) == 1 and not named else None


def _ambiguous(labels: tuple[str, ...]) -> bool:
    """Return whether the first token of one label may be another label."""
    return any(one != other and other.startswith(one) for one in labels for other in labels)
