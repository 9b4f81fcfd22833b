"""``Api``: sends requests to one endpoint, and classifies what fails. The only importer of ``openai``.

The client library's retries are off: they cover no broken replies with status 200, hide attempts from the budget, and
repeat calls that cannot succeed (an exhausted quota).
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import httpx2
import openai

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import MIN_SECRET_CHARS, without_credentials
from reflectrl.core.messages import Messages
from reflectrl.core.text import shortened
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.replies import PROMPT_CODES, Refused, UnusableReply, answer_text, classify_error

MAX_REPLY_BYTES = 4 * 2**20
"""Maximum size of a reply; a chat completion of a million tokens is about as large."""
MAX_BATCH_FILE_BYTES = 2**30
"""Maximum size of a file of batch results, which holds up to 50,000 replies."""
_POOL = httpx2.Limits(max_connections=1000, max_keepalive_connections=100, keepalive_expiry=5.0)
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
_PROXY = re.compile(r"(\w+://[^\s/\[]|[^\s/:\[]+:\d|\[[0-9a-f:]+\]:\d|\w+://\S*\[[0-9a-f:]+\])", re.IGNORECASE)
"""Beginning of a proxy's address: a scheme and a host, or a host and a port."""


def open_http() -> httpx2.AsyncClient:
    """Create the HTTP client with the proxy and the certificates of the environment; nothing is sent.

    Raises:
        InvalidInput: an environment variable for proxies or certificates cannot be used.
    """
    for name in _set(*_PROXIES):
        if not _PROXY.match(os.environ[name]):
            raise InvalidInput(
                f"the environment variable {name} does not hold the address of a proxy; expected one like "
                "http://proxy.example:3128: correct it, or unset it."
            )
    try:
        return httpx2.AsyncClient(
            timeout=None,  # each attempt has its own deadline
            limits=_POOL,
            follow_redirects=False,  # prompts are sent only to the server that the recipe names
            headers={"accept-encoding": "identity"},  # a few compressed bytes could become gigabytes
            event_hooks={"response": [_bound]},
        )
    except (ValueError, OSError, ImportError, httpx2.InvalidURL) as error:
        reason = without_credentials(f"{type(error).__name__}: {error}").rstrip(". ")
        names = ", ".join(_set(*_PROXIES, "NO_PROXY", *_CERTIFICATES))
        raise InvalidInput(
            f"no connection can be set up with the environment variables {names} ({reason}); correct the one that is "
            "wrong, or unset it."
        ) from None


def through_proxies() -> str:
    """Return ", through" and the environment variables that set a proxy, for messages; empty without any."""
    return f", through {', '.join(names)}" if (names := _set(*_PROXIES)) else ""


def was_sent(cause: object) -> bool:
    """Return whether a request may have reached the server, of a connection error with this cause."""
    return not isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.ProxyError)


def _set(*names: str) -> list[str]:
    return [name for name in (*names, *map(str.lower, names)) if os.environ.get(name)]


async def _bound(response: httpx2.Response) -> None:
    """Make reading the body of ``response`` fail once it exceeds the size limit."""
    encoding = response.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise UnusableReply(f"its reply is compressed ({encoding[:20]!r}), which was not asked for.", answered=True)
    is_batch = response.request.url.path.endswith("/content")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    response.stream = _Bounded(response.stream, MAX_BATCH_FILE_BYTES if is_batch else MAX_REPLY_BYTES)


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._max_bytes:
                raise UnusableReply(f"its reply exceeds the limit of {self._max_bytes:,} bytes.", answered=True)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class Silence:
    """Reports through ``tell`` that the server ``who``, which may be slow or still load its model, does not reply.

    ``notice_s`` are the seconds until the first message; they double with each further one until a reply comes.
    """

    def __init__(self, who: str, notice_s: float, tell: Callable[[str], None]) -> None:
        self._who = who
        self._notice_s = notice_s
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None

    def expect(self) -> None:
        """Start waiting: a request was sent."""
        if self._timer is None:
            self._wait(self._notice_s, self._notice_s)

    def end(self, *, waiting: bool = False) -> None:
        """End the silence: a reply came, or all work ended. ``waiting`` for further replies begins the next one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if waiting:
            self.expect()

    def _wait(self, seconds: float, waited: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._say, waited)

    def _say(self, waited: float) -> None:
        self._tell(f"still waiting for a reply from {self._who} ({waited:g} s).")
        self._wait(waited, 2 * waited)


_LEFT: deque[tuple[asyncio.Runner, Callable[[], Coroutine[Any, Any, None]]]] = deque()
_EXITING = threading.Event()
os.register_at_fork(after_in_child=_LEFT.clear)


def hang_up(runner: asyncio.Runner, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Leave the connections and the event loop of a client that was deleted to the next ``close_left``.

    To close a loop takes a thread. Garbage collection calls this anywhere, even in the middle of starting one, which
    would then wait for ever.
    """
    _LEFT.append((runner, close))
    if _EXITING.is_set():
        close_left()


def close_left() -> None:
    """Close what deleted clients have left."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        while _LEFT:
            runner, close = _LEFT.popleft()
            with runner:
                runner.run(close())
    else:  # as in a notebook
        thread = threading.Thread(target=close_left)
        thread.start()
        thread.join()


@atexit.register
def _at_exit() -> None:
    _EXITING.set()
    close_left()


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
    """Makes the requests to one server, and changes them once it has refused the usual form."""

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
        asked |= {"system"} if any(message["role"] == "system" for message in body.get("messages", ())) else set()
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


T = TypeVar("T")


async def version(api: openai.AsyncOpenAI) -> str:
    """Return the version that vLLM tells beside its API; empty for other servers."""
    try:
        told: Any = await api.get(f"{str(api.base_url).rstrip('/').removesuffix('/v1')}/version", cast_to=object)
    except openai.APIStatusError:
        return ""
    return str(told.get("version", "")) if isinstance(told, dict) else ""


async def exchange_adapter(api: openai.AsyncOpenAI, folder: str, name: str | None) -> None:
    """Let vLLM load the adapter ``name`` in ``folder``, if any, and drop all others that it has from there."""
    listed: Any = await api.get("/models", cast_to=object)
    if name is not None:
        asked = {"lora_name": name, "lora_path": f"{folder}/{name}"}
        await api.post("/load_lora_adapter", cast_to=object, body=asked)
    for each in listed["data"]:
        if str(each.get("root") or "").startswith(f"{folder}/"):
            await api.post("/unload_lora_adapter", cast_to=object, body={"lora_name": each["id"]})


class Api:
    """Sends requests to one endpoint; each has a deadline for the whole reply.

    The ``key`` is removed from whatever the server says; ``tell`` gets a line when no reply has come for a while.

    Raises:
        InvalidInput: environment variables for proxies or certificates cannot be used.
    """

    def __init__(self, endpoint: Endpoint, key: str, tell: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._key = key
        self._http: Any = open_http()  # fails before any work starts; used by the first `open`
        self._apis: list[openai.AsyncOpenAI] = []
        self._silence = Silence(str(endpoint), endpoint.notice_s, tell)
        self.posting: set[asyncio.Task[Any]] = set()
        """Tasks whose requests are under way."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return bool(self._apis)

    def open(self) -> None:
        """Open the connections; they belong to the running event loop."""
        endpoint, http = self._endpoint, self._http or open_http()
        self._http = None
        given: dict[str, Any] = {"api_key": self._key, "max_retries": 0, "timeout": None, "http_client": http}
        if not endpoint.is_openai:  # the library takes both from the environment
            given["default_headers"] = dict.fromkeys(("OpenAI-Organization", "OpenAI-Project"), openai.Omit())
        if endpoint.azure_api_version is None:
            self._apis = [openai.AsyncOpenAI(base_url=address, **given) for address in endpoint.addresses]
        else:
            version = endpoint.azure_api_version
            self._apis = [openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url or "", api_version=version, **given)]

    async def close(self) -> None:
        """Close the connections."""
        for api in self._apis[:1]:  # they share their connections
            await api.close()
        self._apis = []

    def rest(self) -> None:
        """Expect no reply for now."""
        self._silence.end()

    async def complete(self, body: dict[str, Any], unpaid: Callable[[], None], place: int = 0) -> object:
        """Send a request for a completion, and return the reply, whole or joined from a stream.

        ``place``, modulo the number of addresses, is the address; a body with a ``prompt`` is not that of a chat.
        ``unpaid`` is called if the request failed in a way that costs nothing: the server answered with the status of
        an error, or could not be reached. Raises as ``send``.
        """

        async def post(api: openai.AsyncOpenAI) -> object:
            try:  # chat.completions.create takes a third more CPU time per call, for validation
                path = "/completions" if "prompt" in body else "/chat/completions"
                return joined(await api.post(path, cast_to=object, body=body))
            except openai.APIStatusError:
                unpaid()
                raise
            except openai.APIConnectionError as error:
                if not was_sent(error.__cause__):
                    unpaid()
                raise

        return await self.send(post, place)

    async def send(
        self, request: Callable[[openai.AsyncOpenAI], Awaitable[T]], place: int = 0, seconds: float | None = None
    ) -> T:
        """Send one request to an address; the library's timeout applies between bytes only, ``seconds`` to it all.

        Raises:
            UnusableReply: the attempt failed, but may be repeated.
            WorkFailed: the endpoint cannot be used.
        """
        seconds, task = seconds or self._endpoint.attempt_s, asyncio.current_task()
        if not self._apis or task is None:
            raise InvalidInput("ChatClient was asked outside of `async with client:`; open the client first.")
        self.posting.add(task)
        self._silence.expect()
        try:
            answer = await asyncio.wait_for(request(self._apis[place % len(self._apis)]), seconds)
            self._silence.end(waiting=len(self.posting) > 1)
            return answer
        except TimeoutError as error:
            raise UnusableReply(f"no complete reply within timeout_s={seconds:g}.") from error
        except openai.APIStatusError as error:
            if error.status_code != 503:  # 503 comes from a server that still loads its model
                self._silence.end(waiting=len(self.posting) > 1)
            code = error.type if error.type in PROMPT_CODES else error.code
            # the original error's text may contain the key
            raise self.failure(error.status_code, code, error.response.text, error.response.headers) from None
        except openai.APIConnectionError as error:
            reason = self.safe(str(error.__cause__ or error))
            raise UnusableReply(f"it cannot be reached ({reason}{through_proxies()}).") from None
        except (openai.APIResponseValidationError, ValueError, RecursionError) as error:  # wrong bytes, syntax or depth
            raise UnusableReply("its reply is not the JSON of a chat completion.", answered=True) from error
        finally:
            self.posting.discard(task)

    def failure(self, status: int, code: str | None, text: str, headers: Any) -> Exception:
        """Return the error for an answer with the status of an error."""
        return classify_error(self._endpoint, status, code, headers, self.safe(text), complaints(text))

    def safe(self, text: str) -> str:
        """Return a server's message, shortened and without the key."""
        return shortened(" ".join(self.clean(without_credentials(text)).split()), 200)

    def clean(self, text: str) -> str:
        """Return ``text`` without the key and without lone surrogates, which only JSON can represent."""
        hidden = text if len(self._key) < MIN_SECRET_CHARS else text.replace(self._key, "***")
        return hidden.encode(errors="replace").decode()
