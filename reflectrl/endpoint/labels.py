"""Questions for a label of a menu: how a server is held to the labels, and how a reply is read where it was not.

OpenAI's own models answer with a label when they are told to, and are asked as before. A weak model behind another
server often does not; so the server is asked in the first of ``WAYS`` that it obeys, which its replies show.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from reflectrl.core.chat import LabelChat, Messages
from reflectrl.core.text import holds
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.replies import Refused, Text, UnusableReply, read_text

WAYS = ("schema", "grammar", "logprobs", "text")
"""From the one that most servers know to the one that every server does."""
TOP_LOGPROBS = 20
"""Most likely tokens that are asked for; the most that OpenAI's chat API allows."""
SIGNS = "`'\"*()[]. \t\r\n"
"""Signs around an answer that do not change it."""


class LabelWays:
    """The way in which one server is asked for labels: the first of those left that it has not broken.

    Args:
        endpoint: the server.
        ways: those that it may know; "text" alone for OpenAI and Azure.

    """

    def __init__(self, endpoint: Endpoint, ways: Sequence[str] = WAYS) -> None:
        self.lenient = endpoint.base_url is not None and endpoint.azure_api_version is None
        """True if labels are read from other words, and sentences from a reply that ``max_tokens`` cut off."""
        self._left = list(ways if self.lenient else ("text",))
        self._obeyed = False

    def of(self, chat: Messages) -> str:
        """Return the way for ``chat``; "text" for one that asks for no label."""
        if not isinstance(chat, LabelChat) or (self._left[0] == "logprobs" and _ambiguous(chat.labels)):
            return "text"
        return self._left[0]

    def refused(self, way: str, failure: Exception, attempt: int) -> bool:
        """Return whether another way is to be tried after a request that failed, for a way that never worked yet.

        A server says that it does not know a way with a status of 4xx, or with one of 5xx each time.
        """
        if self._obeyed or way == "text":
            return False
        broken = isinstance(failure, UnusableReply) and failure.status >= 500 and failure.status != 503
        return (isinstance(failure, Refused) or (broken and attempt > 1)) and self._give_up(way)

    def read(self, way: str, chat: LabelChat, completion: Any, safe: Callable[[str], str]) -> Text:
        """Return the label of a completion that was asked for in a ``way``; as text what may be none, to be refused.

        Raises:
            UnusableReply: it cannot be used; the repetition is free if the next way is tried then.

        """
        if way == "text":
            return self._read_text(chat, read_text(completion, safe))
        label = _FROM[way](completion, chat.labels)
        self._obeyed = self._obeyed or label is not None
        if label is None:
            free = self._give_up(way)
            label = _plain(_text(completion), chat)  # by the model's own will
            if label is None:
                raise UnusableReply("its reply is no label, although it was held to them.", answered=True, free=free)
        return Text(label, cut=False)

    def _read_text(self, chat: LabelChat, reply: Text) -> Text:
        if not self.lenient or chat.strict or _plain(reply.text, chat) is not None:
            return reply
        label = read_leniently(reply.text, chat)
        return reply if label is None else Text(label, cut=False, words=reply.text)

    def _give_up(self, way: str) -> bool:
        """Go on to the next way, unless another call did already; return False if there is none."""
        if way == self._left[0] and len(self._left) > 1:
            del self._left[0]
            self._obeyed = False
        return way != self._left[0]


def fields(way: str, chat: Messages) -> dict[str, Any]:
    """Return what a request has besides the chat to be answered with a label of ``chat`` alone."""
    if way == "text" or not isinstance(chat, LabelChat):
        return {}
    if way == "grammar":  # of llama.cpp
        return {"grammar": f"root ::= {' | '.join(json.dumps(label) for label in chat.labels)}"}
    if way == "logprobs":
        return {"logprobs": True, "top_logprobs": TOP_LOGPROBS, "max_tokens": 1}
    label = {"type": "string", "enum": list(chat.labels)}
    schema = {"type": "object", "properties": {"label": label}, "required": ["label"], "additionalProperties": False}
    return {
        "response_format": {"type": "json_schema", "json_schema": {"name": "choice", "strict": True, "schema": schema}}
    }


def _of_schema(completion: Any, labels: tuple[str, ...]) -> str | None:
    try:
        label = str(json.loads(completion["choices"][0]["message"]["content"])["label"])
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    return label if label in labels else None


def _text(completion: Any) -> str:
    try:
        return str(completion["choices"][0]["message"]["content"])
    except (IndexError, KeyError, TypeError):
        return ""


def _of_text(completion: Any, labels: tuple[str, ...]) -> str | None:
    label = _text(completion).strip(SIGNS)
    return label if label in labels else None


def _plain(reply: str, chat: LabelChat) -> str | None:
    """Return the label of a reply that is, apart from signs around it, a label or a whole line of the menu."""
    bare = reply.strip(SIGNS)
    for label, action in zip(chat.labels, chat.actions, strict=True):
        if bare in (label.strip(SIGNS), f"{label}. {action}".strip(SIGNS)):
            return label
    return None


def _of_logprobs(completion: Any, labels: tuple[str, ...]) -> str | None:
    """Return the label that was sampled, else the most likely one of those reported."""
    try:
        first = completion["choices"][0]["logprobs"]["content"][0]
        reported = [(float(each["logprob"]), str(each["token"]).strip(SIGNS)) for each in first["top_logprobs"]]
        sampled = str(first["token"]).strip(SIGNS)
    except (IndexError, KeyError, TypeError, ValueError):
        return None
    known = [(logprob, token) for logprob, token in reported if token in labels]
    return sampled if sampled in labels else max(known)[1] if known else None


_FROM = {"schema": _of_schema, "grammar": _of_text, "logprobs": _of_logprobs}


def read_leniently(reply: str, chat: LabelChat) -> str | None:
    """Return the label that a reply means though it says more, or says it otherwise; ``None`` where that is open.

    It is the label that the reply begins with, or that of the only action it names, or the only number among labels.
    """
    begun = re.match(r"\W*(\w+)\W*?(?:[.:)\]]|$)", reply, re.MULTILINE)
    if begun and begun[1] in chat.labels:
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
