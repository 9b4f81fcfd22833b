"""Requests for a label of a menu: how a server is constrained to the labels, and how other replies are read.

OpenAI's own models answer with a label when the prompt asks for one, so their requests have no constraint. A weak model
behind another server often does not; requests to such a server use the first of ``WAYS`` that its replies obey.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from reflectrl.core.chat import DECORATION, LabelChat, Messages
from reflectrl.core.text import holds
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.replies import Refused, Text, UnusableReply, read_choice, read_text
from reflectrl.endpoint.thinking import without_thinking

WAYS = ("schema", "grammar", "logprobs", "text")
"""Ways to constrain a reply, from the one that most servers support to the one that every server does."""
TOP_LOGPROBS = 20
"""Number of most likely tokens to request; OpenAI's chat API allows no more."""


class LabelWays:
    """Chooses the way in which one server is asked for labels: the first of ``ways`` that it supports.

    Args:
        endpoint: the server.
        ways: ways to try, in this order; OpenAI and Azure are asked by "text" only.

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
