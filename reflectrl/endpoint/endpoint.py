"""``Endpoint``: model, address and limits of a chat endpoint."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import field
from typing import Annotated, Any

from pydantic import AfterValidator

from reflectrl.core import Image, InvalidInput
from reflectrl.core.addresses import host_of, is_private, without_credentials
from reflectrl.core.messages import Messages, PicturedChat, TokenPrompt
from reflectrl.core.settings import Address, Count, CountOrZero, NonNegative, Positive, VariableName, settings
from reflectrl.endpoint.account import Price, Tokens

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


_OURS = {
    *("model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream", "stream_options", "n"),
    *("response_format", "grammar", "logprobs", "top_logprobs"),
}
"""Fields that have settings of their own, or that decide how a reply is read."""
_SECRET_NAME = re.compile(
    r"(api|access|auth|secret|private|subscription).?(key|token)|secret|password|passwd|authori[sz]ation|credential"
    r"|bearer|cookie",
    re.IGNORECASE,
)
_SECRET_FORM = re.compile(
    r"\b(bearer|basic)\s+\S{8}|\b(sk|pk|rk|hf|gsk|xai|nvapi|ghp|gho|glpat|r8|pplx|fw|tgp|csk|key)[-_][\w-]{12}"
    r"|\bAIza[\w-]{20}|\beyJ[\w-]{10}|\bgithub_pat_|-----BEGIN",
    re.IGNORECASE,
)
"""Beginnings of the keys of common providers."""


def public_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return ``fields`` after a check that reflectrl sets none of them itself and that none is a secret.

    Raises:
        InvalidInput: one is, or JSON cannot hold it; the message does not repeat values.
    """
    if ours := _OURS & fields.keys():
        raise InvalidInput(
            f"extra_body holds {min(ours)!r}, which reflectrl sets itself; leave it out, and use the endpoint's keys."
        )
    if secret := next(_secrets(fields), None):
        raise InvalidInput(
            f"extra_body holds something like a key at {secret!r}, and recipes are copied into run folders and "
            "reports; leave it out, and name the environment variable that holds the key in api_key_env."
        )
    try:
        json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidInput("extra_body holds a value that JSON cannot hold; expected texts, numbers, lists.") from None
    return fields


def _secrets(value: Any, key: str = "") -> Iterator[str]:
    """Yield the names of the parts of ``value``, called ``key``, that look like credentials by their name or form."""
    if _SECRET_NAME.search(key):
        yield key
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _secrets(part, str(name))
    elif isinstance(value, list):
        for part in value:
            yield from _secrets(part, key)
    elif isinstance(value, str) and (_SECRET_FORM.search(value) or without_credentials(value) != value):
        yield key


ExtraBody = Annotated[dict[str, Any], AfterValidator(public_fields)]


OPENAI_URL = "https://api.openai.com/v1"
OPENAI_KEY = "OPENAI_API_KEY"
"""Environment variable that holds the key of OpenAI."""
NO_KEY = "EMPTY"
"""Key sent to a server that needs none; the client library requires one."""
TIMEOUT_S = 60.0
"""Default time limit of one attempt, in seconds."""
PRIVATE_TIMEOUT_S = 3600.0
"""Default time limit for a server on a private address, which may be slow; the same as in llama.cpp's server."""


@settings()
class Endpoint:
    """An OpenAI-compatible chat endpoint. The key comes from the environment only."""

    model: str = "gpt-4o"
    """Model (or Azure deployment) name."""
    base_url: Address | None = None
    """Address of a compatible server, without login or query; OpenAI when absent."""
    replicas: list[Address] = field(default_factory=list)
    """Addresses of further servers of the same model; calls are dealt among all, equal prompts to the same one."""
    azure_api_version: str | None = None
    """API version of Azure OpenAI, whose endpoint is then ``base_url``; absent for other servers."""
    api_key_env: VariableName | None = None
    """Name of the environment variable that holds the key. Absent: ``OPENAI_API_KEY`` for OpenAI, Azure and a server on
    a private address; other servers get no key."""
    concurrency: Count = 8
    """Maximum number of calls in flight."""
    timeout_s: Positive | None = None
    """Seconds one attempt may take; absent: 60, or 3600 where ``base_url`` is on this machine or its own network."""
    max_attempts: Count = 5
    """Maximum number of attempts a call, the first included."""
    max_rejected: CountOrZero = 20
    """Maximum number of calls without a usable reply, set aside in ``rejected.jsonl``, before work stops."""
    max_tokens: Count = 200
    """Maximum number of tokens of a reply; a reply that is truncated there is requested again, in fewer words."""
    temperature: NonNegative | None = 0.0
    """Sampling temperature; null sends none, since OpenAI's reasoning models refuse it."""
    extra_body: ExtraBody = field(default_factory=dict)
    """Further fields of each request, such as ``{chat_template_kwargs: {enable_thinking: false}}``; no keys or
    passwords, since the recipe is copied into run folders and reports."""
    backoff_s: Positive = 0.5
    """Longest pause in seconds before the second attempt of a call; it doubles with each further one."""
    notice_s: Positive = 30.0
    """Seconds without any reply after which a line says so; they double with each further line."""
    price: Price | None = None
    """Price of tokens, for the estimate, the summary and ``--max-cost``; absent: only tokens are counted. It belongs to
    the ``model`` and ``base_url`` that it was written for: change one of them, and give it again, or null."""

    def __str__(self) -> str:
        """Return model and address, for messages."""
        return f"model {self.model!r} at {self.base_url or OPENAI_URL}"

    @property
    def is_own(self) -> bool:
        """Whether the server is on this machine or its network; it may be slow, and is free unless a price is given."""
        return self.base_url is not None and all(map(is_private, self.addresses))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of all servers."""
        return (self.base_url or OPENAI_URL, *self.replicas)

    @property
    def attempt_s(self) -> float:
        """Time limit of one attempt, in seconds."""
        if self.timeout_s is not None:
            return self.timeout_s
        return PRIVATE_TIMEOUT_S if self.is_own else TIMEOUT_S

    @property
    def is_openai(self) -> bool:
        """Whether OpenAI or Azure answers."""
        host = host_of(self.base_url or OPENAI_URL)
        return self.azure_api_version is not None or f".{host}".endswith((".openai.com", ".azure.com"))

    @property
    def is_sampled(self) -> bool:
        """Whether equal calls may get different replies."""
        return self.temperature != 0

    @property
    def key_variable(self) -> str | None:
        """Name of the environment variable that holds the key; ``None`` if the server gets none."""
        return self.api_key_env or (OPENAI_KEY if self.is_openai or self.is_own else None)

    def body(self, chat: Messages) -> dict[str, Any]:
        """Return the JSON body of a call."""
        if isinstance(chat, TokenPrompt):
            return {**self.extra_body, "model": self.model, **self._continued(chat)}
        return {
            **self.extra_body,
            "model": self.model,
            "messages": sent(chat),
            **({} if self.temperature is None else {"temperature": self.temperature}),
            # other servers know max_tokens; OpenAI's newer models refuse it
            "max_completion_tokens" if self.is_openai else "max_tokens": self.max_tokens,
        }

    def _continued(self, text: TokenPrompt) -> dict[str, Any]:
        """Return the fields of a request to continue a text; those that only vLLM knows are left unread by others."""
        return {
            "prompt": list(text.ids),
            "max_tokens": 1 if text.allowed else self.max_tokens,
            "temperature": self.temperature or 0.0,
            "stop_token_ids": [text.end],
            "return_token_ids": True,
            **({"seed": text.seed} if self.is_sampled else {}),
            **({"allowed_token_ids": list(text.allowed)} if text.allowed else {}),
            **({"logprobs": 0} if text.logprobs else {}),
            **text.more,
        }

    def digest(self, chat: Messages, draw: str = "") -> str:
        """Return the key of a call: calls with equal digests share one reply.

        Settings that influence only the speed or the number of calls do not count; ``draw`` does if it is sampled. Nor
        does the address where token ids are continued, because it is checked what is served there.
        """
        where = None if isinstance(chat, TokenPrompt) else self.base_url
        asked: list[Any] = [self.model, where, self.temperature, self.max_tokens, chat]
        asked += [chat.allowed] if isinstance(chat, TokenPrompt) and chat.allowed else []
        asked += [draw if self.is_sampled else "", *shown(chat)]
        asked += [self.extra_body] if self.extra_body else []
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def most(self, chat: Messages) -> Tokens:
        """Return the most tokens that a call may be charged for.

        They are one token per byte, 16 per message, ``PICTURE_TOKENS`` per picture and all of ``max_tokens``.
        """
        texts = sum(len(message["content"].encode()) + 16 for message in chat)
        return Tokens(texts + PICTURE_TOKENS * len(shown(chat)), self.max_tokens)

    def max_cost(self, chat: Messages) -> float:
        """Return an upper bound of a call's cost in USD, that of ``most`` tokens."""
        return self.most(chat).cost(self.price)

    def key(self) -> str:
        """Return the key, which is read from the environment only.

        Raises:
            InvalidInput: the key is missing or malformed, or Azure's address is missing.
        """
        url, azure = self.base_url, self.azure_api_version is not None
        if azure and url is None:
            raise InvalidInput(
                "azure_api_version was given without base_url; set base_url to the address of the resource."
            )
        variable = self.key_variable
        key = os.environ.get(variable, "").strip() if variable else ""
        if not key and self.is_openai:
            raise InvalidInput(
                f"{self} needs a key, but the environment variable {variable} is not set; set it, or point base_url at "
                "your own server."
            )
        if self.replicas and self.is_openai:
            raise InvalidInput(
                "replicas was given for OpenAI or Azure, which deal out calls themselves; remove it, or set base_url "
                "to a server of your own."
            )
        plain = next((each for each in self.addresses if each.startswith("http:")), None)
        if key and plain and not (self.is_own or self.api_key_env):
            raise InvalidInput(
                f"base_url={plain!r} would send the key in {variable} unencrypted; write https, or name the variable "
                "in api_key_env if that is meant."
            )
        if not (key.isascii() and key.isprintable()):
            raise InvalidInput(f"environment variable {variable} has characters that no key has; correct it.")
        return key or NO_KEY
