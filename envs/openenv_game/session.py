"""``Session``: OpenEnv's client, which stays in the session that an episode began in, and says what went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import httpx2
from openenv.core import GenericEnvClient
from openenv.core.client_types import StepResult
from websockets.exceptions import ConnectionClosed

from reflectrl.core import InvalidInput
from reflectrl.core.addresses import without_credentials
from reflectrl.core.errors import raised
from reflectrl.envs.openenv_game.servers import addresses, from_environment, last_words, leave

START_S = 120.0
"""Seconds for the first answer of a server that is started here, which imports its packages first."""


class Full(Exception):  # noqa: N818 - a state of the server, as in queue.Full
    """The server has as many sessions as it may."""


class Refused(Exception):  # noqa: N818
    """The server found that a message is no action."""


class Client(GenericEnvClient):
    """A client that never connects again by itself, because a new session would not be in the episode."""

    async def _ensure_connected(self) -> None:
        if self._ws is None:
            raise ConnectionError("the connection was closed")

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await super()._send_and_receive(message)
        except ConnectionClosed:
            raise ConnectionError(f"the server at {self.base_url} ended the session") from None
        except TimeoutError:
            late = f"the server at {self.base_url} did not answer within {self._message_timeout:g} s"
            raise TimeoutError(late) from None
        except RuntimeError as error:
            if "(code: CAPACITY_REACHED)" in str(error):
                raise Full(str(error)) from None
            if "(code: VALIDATION_ERROR)" in str(error):
                raise Refused from None
            raise
        return answer


class Session:
    """One session at a time with a server; a new one begins after a failure.

    Args:
        server: an address, a package, or ``module:app``, see ``OpenEnvGame``.
        variables: environment variables for a package's server; ``$NAME`` as a value is that of a variable of ours.
        key: ``$NAME``, the environment variable with the bearer key that the server asks for; ``None`` for none.
        timeout_s: seconds for an answer.

    Raises:
        InvalidInput: there is no such server, no such variable, or the address holds a login.
    """

    def __init__(self, server: str, variables: Mapping[str, str], key: str | None, timeout_s: float) -> None:
        address = server if "://" in server else f"http://{server}"  # a login without a scheme is no module either
        if without_credentials(address) != address:
            raise InvalidInput(
                "the server's address holds a login or a query, and options are written into run folders; leave it "
                "out, and give the option key=$NAME, the environment variable that holds the key."
            )
        self._headers = {} if key is None else {"Authorization": f"Bearer {from_environment('key', key)}"}
        given = {
            name: from_environment(f"variables.{name}", value) if value.startswith("$") else value
            for name, value in variables.items()
        }
        self._where = server, given
        self._timeout_s = timeout_s
        self._start_s = timeout_s if "://" in server else START_S
        self._client: Any = None
        url = next(addresses(*self._where, self))
        try:
            self.schema = self._described(url)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError, KeyError) as error:
            why = last_words(url) or raised(error)
            leave(self)
            raise InvalidInput(
                f"no OpenEnv server answers for {server!r} at {url}/schema ({why}); expected the address of one, an "
                "installed package with server/app.py, or module:app."
            ) from error

    def reset(self, seed: int) -> StepResult[dict[str, Any]]:
        """Begin an episode; asked for once more, in a new session, if the old one has ended or the answer is late."""
        try:
            return self._reset(seed)
        except OSError:
            return self._reset(seed)

    def tools(self) -> list[dict[str, Any]]:
        """Return name, description and ``input_schema`` of each tool, where actions are calls of tools."""
        if "tool_name" not in self.schema["action"].get("properties", {}):
            return []
        self.reset(0)
        return self.step({"type": "list_tools"}).observation["tools"]

    def step(self, action: Mapping[str, Any]) -> StepResult[dict[str, Any]]:
        """Play an action; after an error other than ``Refused``, the session is over."""
        return self._ask(lambda: self._client.step(dict(action)))

    def close(self) -> None:
        """End the session, and the server if it was started here and nobody else uses it; ``reset`` begins again."""
        self._end()
        leave(self)

    def _end(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def _reset(self, seed: int) -> StepResult[dict[str, Any]]:
        full = ""
        for url in addresses(*self._where, self) if self._client is None else [""]:
            try:
                if self._client is None:
                    self._connect(url)
                return self._ask(lambda: self._client.reset(seed=seed))
            except Full as error:
                full = str(error).removeprefix("Server error: ")
        raise RuntimeError(f"{full}; let it serve more, or play fewer episodes at a time")

    def _connect(self, url: str) -> None:
        try:
            if self._described(url) != self.schema:
                raise RuntimeError(f"the server at {url} is another version now, with other messages; start again")
        except httpx2.HTTPError as error:
            raise ConnectionError(f"the server at {url} does not answer: it {raised(error)}") from error
        limits = {"connect_timeout_s": self._timeout_s, "message_timeout_s": self._timeout_s}
        self._client = Client(url, headers=self._headers, **limits).sync()
        self._ask(self._client.connect)

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Refused:
            raise
        except BaseException:  # the alarm of env.deadline_s as well: the answer may come later
            self._end()
            raise

    def _described(self, url: str) -> dict[str, Any]:
        answer = httpx2.get(f"{url}/schema", headers=self._headers, timeout=self._start_s).raise_for_status().json()
        return {"action": dict(answer["action"]), "observation": dict(answer["observation"])}
