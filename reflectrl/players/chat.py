"""``ChatClient``: one OpenAI-compatible chat endpoint behind one retry policy. The only importer of ``openai``.

The client library's own retries are off: they do not cover replies that arrive with status 200 and are broken, and they
repeat calls that no repetition can mend (an exhausted quota).
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import openai

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.prompts.chat import BadReply, Messages

OPENAI_URL = "https://api.openai.com/v1"
RETRIED = (408, 409, 425, 429)
"""Statuses worth another attempt, as is every 5xx."""
HOPELESS = ("insufficient_quota", "billing_hard_limit_reached", "context_length_exceeded", "model_not_found")
"""Error codes that no repetition mends, whatever their status."""
LONGEST_WAIT_S = 120.0
"""A server that asks for a longer pause is not waited for."""
LONGEST_BACKOFF_S = 30.0

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible chat endpoint; the fields are those of the recipe's endpoint section."""

    model: str = "gpt-4o"
    base_url: str | None = None
    azure_api_version: str | None = None
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 8
    timeout_s: float = 60.0
    max_attempts: int = 5
    max_tokens: int = 200
    temperature: float = 0.0
    backoff_s: float = 0.5
    """Longest pause before the first repetition; it doubles with each further one."""

    def __str__(self) -> str:
        """For messages: what is asked, and where."""
        return f"model {self.model!r} at {self.base_url or OPENAI_URL}"


@dataclass(frozen=True)
class Usage:
    """What the calls of a client came to."""

    calls: int = 0
    """Requests sent, repeated ones included."""
    retries: int = 0
    """How many of them were repetitions."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Reply(Generic[T]):
    """What was read out of a model's words."""

    value: T
    tokens: int
    """Completion tokens; 0 where the endpoint does not say."""


class _Unusable(Exception):
    """An attempt that failed in a way that another may mend."""

    def __init__(self, sentence: str, wait_s: float | None = None) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s


class ChatClient:
    """Asks one endpoint. Use ``ask_many``, or ``async with client:`` and ``ask``.

    Raises:
        InvalidInput: no key, or an address that cannot be one.

    """

    def __init__(self, endpoint: Endpoint) -> None:
        """Read the key; nothing is sent yet."""
        self.endpoint = endpoint
        self.usage = Usage()
        self._key = _key(endpoint)
        self._not_before = 0.0
        self._api: openai.AsyncOpenAI | None = None
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._runner = asyncio.Runner()

    async def __aenter__(self) -> ChatClient:
        """Open the connections; they belong to the running event loop."""
        self._api = self._connect()
        self._slots = asyncio.Semaphore(self.endpoint.concurrency)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        if self._api is not None:
            await self._api.close()
        self._api = None

    def ask_many(self, chats: Sequence[Messages], reads: Sequence[Callable[[str], T]]) -> list[Reply[T]]:
        """Ask all chats, ``endpoint.concurrency`` at a time; replies in order. See ``ask``.

        The connections stay open for the next call, until the client is gone: a rollout asks at every step.
        """
        if self._api is None:
            self._api, self._slots = self._connect(), asyncio.Semaphore(self.endpoint.concurrency)
            weakref.finalize(self, _hang_up, self._runner, self._api)

        async def ask_all() -> list[Reply[T]]:
            asked = [asyncio.create_task(self.ask(*pair)) for pair in zip(chats, reads, strict=True)]
            try:
                return await asyncio.gather(*asked)
            finally:  # after a failure, nobody waits for the others
                for ask in asked:
                    ask.cancel()
                await asyncio.gather(*asked, return_exceptions=True)

        return self._runner.run(ask_all())

    async def ask(self, chat: Messages, read: Callable[[str], T]) -> Reply[T]:
        """What ``read`` makes of the model's reply; where it raises ``BadReply``, the model is told and asked again.

        Raises:
            WorkFailed: the endpoint cannot be used, or ``endpoint.max_attempts`` were not enough.

        """
        if self._api is None:
            raise InvalidInput("ChatClient.ask was called outside of `async with client:`; open the client first.")
        attempts = self.endpoint.max_attempts
        async with self._slots:  # kept while waiting to ask again: a server in trouble is asked less
            for attempt in range(1, attempts + 1):
                try:
                    reply = await self._attempt(self._api, chat, attempt)
                    return Reply(read(reply.value), reply.tokens)
                except BadReply as complaint:
                    failure = f"its last reply was {reply.value[:80]!r}, and the answer to it: {complaint}"
                    chat = [*chat, _message("assistant", reply.value), _message("user", str(complaint))]
                except _Unusable as error:
                    failure = str(error)
                    if attempt < attempts:
                        await self._pause(attempt, error.wait_s)
        raise WorkFailed(
            f"{self.endpoint} gave no usable reply in {attempts} attempts: {failure} Check the server and the model, "
            "or raise max_attempts or timeout_s of the endpoint, then run again."
        )

    async def _pause(self, attempt: int, wait_s: float | None) -> None:
        if wait_s:  # the server's word holds for all calls, not only for this one
            self._not_before = max(self._not_before, time.monotonic() + wait_s)
            return
        longest = min(LONGEST_BACKOFF_S, self.endpoint.backoff_s * 2 ** (attempt - 1))
        # jitter decides when a call is repeated, never what it says, so it needs no seed
        await asyncio.sleep(random.uniform(longest / 2, longest))

    async def _attempt(self, api: openai.AsyncOpenAI, chat: Messages, attempt: int) -> Reply[str]:
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        usage = self.usage
        self.usage = replace(usage, calls=usage.calls + 1, retries=usage.retries + (attempt > 1))
        seconds = self.endpoint.timeout_s
        try:
            # the client's own timeout would run between bytes only; this one is for the whole reply
            completion = await asyncio.wait_for(self._create(api, chat), seconds)
        except TimeoutError as error:
            raise _Unusable(f"no complete reply within timeout_s={seconds:g}.") from error
        except openai.APIStatusError as error:
            raise self._judge(error) from error
        except openai.APIConnectionError as error:
            raise _Unusable(f"it cannot be reached ({error.__cause__ or error}).") from error
        except (openai.APIResponseValidationError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise _Unusable("its reply is not the JSON of a chat completion.") from error
        return self._read(completion)

    async def _create(self, api: openai.AsyncOpenAI, chat: Messages) -> object:
        endpoint = self.endpoint
        # self-made servers know max_tokens, OpenAI's newer models refuse it
        old_name = endpoint.base_url is not None and endpoint.azure_api_version is None
        body = {
            "model": endpoint.model,
            "messages": chat,
            "temperature": endpoint.temperature,
            "max_tokens" if old_name else "max_completion_tokens": endpoint.max_tokens,
        }
        # chat.completions.create takes a third more processor time a call, to check and wrap what goes by
        return await api.post("/chat/completions", cast_to=object, body=body)

    def _read(self, completion: Any) -> Reply[str]:
        """The text of a completion; whatever a broken server may have sent is refused."""
        tokens = _count(completion, "completion_tokens")
        self.usage = replace(
            self.usage,
            prompt_tokens=self.usage.prompt_tokens + _count(completion, "prompt_tokens"),
            completion_tokens=self.usage.completion_tokens + tokens,
        )
        try:
            text, finish = completion["choices"][0]["message"]["content"], completion["choices"][0].get("finish_reason")
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            shown = self._safe(str(completion))
            raise _Unusable(f"its reply is not a chat completion but {shown!r}.") from error
        if not isinstance(text, str) or not text.strip():
            raise _Unusable(f"its reply is empty (finish_reason {finish}; for 'length', raise max_tokens).")
        # half of a surrogate pair is valid in JSON, but in no file
        return Reply(text.strip().encode(errors="replace").decode(), tokens)

    def _judge(self, error: openai.APIStatusError) -> Exception:
        """Whether to try again (``_Unusable``) or to stop (``WorkFailed``, with what to do)."""
        status, said = error.status_code, self._safe(error.response.text)
        if error.code not in HOPELESS and (status in RETRIED or status >= 500):
            wait_s = _retry_after(error.response.headers)
            if wait_s is None or wait_s <= LONGEST_WAIT_S:
                return _Unusable(f"it answered with status {status}: {said}.", wait_s)
            advice = f"it asks for a pause of {wait_s:.0f} seconds; run again after that"
        elif error.code in HOPELESS[:2]:
            advice = "the account's quota is used up; raise it, or use another endpoint"
        elif status in (401, 403):
            advice = f"the key was refused; put a valid one into the environment variable {self.endpoint.api_key_env}"
        elif status == 404 or error.code == "model_not_found":
            advice = "there is no such model or path; check endpoint.model and endpoint.base_url"
        elif error.code == "context_length_exceeded":
            advice = "the prompt is longer than the model takes; use a model with a longer context"
        else:
            advice = "the request was refused; check the endpoint's settings against what the server supports"
        return WorkFailed(f"{self.endpoint} answered with status {status}: {advice}. It said: {said}")

    def _safe(self, text: str) -> str:
        """What a server said, short, without the key should it echo it."""
        line = " ".join(text.replace(self._key, "***").split())
        return line if len(line) <= 200 else f"{line[:197]}..."

    def _connect(self) -> openai.AsyncOpenAI:
        endpoint = self.endpoint
        if endpoint.azure_api_version is None:
            return openai.AsyncOpenAI(
                base_url=endpoint.base_url or OPENAI_URL,
                api_key=self._key,
                max_retries=0,
                timeout=None,
            )
        return openai.AsyncAzureOpenAI(
            azure_endpoint=endpoint.base_url or "",
            api_version=endpoint.azure_api_version,
            api_key=self._key,
            max_retries=0,
            timeout=None,
        )


def _hang_up(runner: asyncio.Runner, api: openai.AsyncOpenAI) -> None:
    """Close the connections and the event loop of a client that is gone."""

    def close() -> None:
        with runner:
            runner.run(api.close())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        close()
    else:  # the client was collected in the middle of somebody else's event loop
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _key(endpoint: Endpoint) -> str:
    """The key, from the environment only."""
    url, azure = endpoint.base_url, endpoint.azure_api_version is not None
    if azure and url is None:
        raise InvalidInput("azure_api_version was given without base_url; set base_url to the address of the resource.")
    if url is not None and not url.startswith(("http://", "https://")):
        raise InvalidInput(f"base_url={url!r} is no address; expected one like http://localhost:8000/v1.")
    key = os.environ.get(endpoint.api_key_env, "").strip()
    if not key and (url is None or azure):
        raise InvalidInput(
            f"{endpoint} needs a key, but the environment variable {endpoint.api_key_env} is not set; set it, or point "
            "base_url at a server of your own."
        )
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput(f"environment variable {endpoint.api_key_env} has characters that no key has; set it anew.")
    return key or "EMPTY"


def _count(completion: Any, name: str) -> int:
    usage = completion.get("usage") if isinstance(completion, dict) else None
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait, from either header it may use."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None
