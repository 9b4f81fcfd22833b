"""``Api``: sends requests to one endpoint, and classifies what fails. The only importer of ``openai``.

The client library's retries are off: they cover no broken replies with status 200, hide attempts from the budget, and
repeat calls that cannot succeed (an exhausted quota).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import openai

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import MIN_SECRET_CHARS, without_credentials
from reflectrl.core.text import shortened
from reflectrl.endpoint.dialect import complaints
from reflectrl.endpoint.endpoint import OPENAI_URL, Endpoint
from reflectrl.endpoint.replies import PROMPT_CODES, UnusableReply, classify_error
from reflectrl.endpoint.stream import joined
from reflectrl.endpoint.transport import Silence, open_http, through_proxies, was_sent

T = TypeVar("T")


class Api:
    """Sends requests to one endpoint; each has a deadline for the whole reply.

    Args:
        endpoint: model, address and limits.
        key: the key, which is removed from whatever the server says.
        tell: receives a line when no reply has come for a while.

    Raises:
        InvalidInput: environment variables for proxies or certificates cannot be used.

    """

    def __init__(self, endpoint: Endpoint, key: str, tell: Callable[[str], None]) -> None:
        self._endpoint = endpoint
        self._key = key
        self._http: Any = open_http()  # fails before any work starts; used by the first `open`
        self._api: openai.AsyncOpenAI | None = None
        self._silence = Silence(str(endpoint), endpoint.notice_s, tell)
        self.posting: set[asyncio.Task[Any]] = set()
        """Tasks whose requests are under way."""

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent."""
        return self._api is not None

    def open(self) -> None:
        """Open the connections; they belong to the running event loop."""
        endpoint, http = self._endpoint, self._http or open_http()
        self._http = None
        given: dict[str, Any] = {"api_key": self._key, "max_retries": 0, "timeout": None, "http_client": http}
        if not endpoint.is_openai:  # the library takes both from the environment
            given["default_headers"] = dict.fromkeys(("OpenAI-Organization", "OpenAI-Project"), openai.Omit())
        if endpoint.azure_api_version is None:
            self._api = openai.AsyncOpenAI(base_url=endpoint.base_url or OPENAI_URL, **given)
        else:
            version = endpoint.azure_api_version
            self._api = openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url or "", api_version=version, **given)

    async def close(self) -> None:
        """Close the connections."""
        if self._api is not None:
            await self._api.close()
        self._api = None

    def rest(self) -> None:
        """Expect no reply for now."""
        self._silence.end()

    async def complete(self, body: dict[str, Any], unpaid: Callable[[], None]) -> object:
        """Send a request for a chat completion, and return the reply, whole or joined from a stream.

        ``unpaid`` is called if the request failed in a way that costs nothing: the server answered with the status of
        an error, or could not be reached. Raises as ``send``.
        """

        async def post(api: openai.AsyncOpenAI) -> object:
            try:  # chat.completions.create takes a third more CPU time per call, for validation
                return joined(await api.post("/chat/completions", cast_to=object, body=body))
            except openai.APIStatusError:
                unpaid()
                raise
            except openai.APIConnectionError as error:
                if not was_sent(error.__cause__):
                    unpaid()
                raise

        return await self.send(post)

    async def send(self, request: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
        """Send one request; the library's timeout applies between bytes only.

        Raises:
            UnusableReply: the attempt failed, but may be repeated.
            WorkFailed: the endpoint cannot be used.

        """
        seconds, task = self._endpoint.attempt_s, asyncio.current_task()
        if self._api is None or task is None:
            raise InvalidInput("ChatClient was asked outside of `async with client:`; open the client first.")
        self.posting.add(task)
        self._silence.expect()
        try:
            answer = await asyncio.wait_for(request(self._api), seconds)
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
