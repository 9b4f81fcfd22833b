"""Requests and replies of ``reflectrl serve``: the JSON of ``/act``, its limits, and what is checked first."""

from __future__ import annotations

import asyncio
import hmac
import re
import traceback
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reflectrl.core import InvalidInput, nearest
from reflectrl.core.addresses import host_of, ip_address
from reflectrl.core.stop import tell_user
from reflectrl.share import Bounds

MAX_NAME_CHARS = 60
"""Characters of a client's name that an error message repeats."""


def _text(given: str) -> str:
    try:
        given.encode()
    except UnicodeEncodeError:
        raise ValueError("holds a lone surrogate, which is not text") from None
    return given


def _line(given: str) -> str:
    if "\n" in given:
        raise ValueError("should be one line")
    return given


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[Text, AfterValidator(_line)]


class ActRequest(BaseModel):
    """A state for which the agent chooses an action. Unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    observation: Text
    """Text of the state, as the run's environment shows it."""
    actions: list[Line] = []
    """Legal actions, one line each; none in an environment without menus."""
    task: Text = ""
    """Text of the task, for environments that show one."""
    common: list[Line] = []
    """Actions legal in nearly all states of the episode, for agents whose prompts list them first (prompt.menu)."""
    history: list[Line] = []
    """Earlier actions of the episode, oldest first."""
    visited: list[Text] = []
    """Texts of the states in which these actions were chosen, in their short form if the environment has one; for
    agents whose prompts show them (prompt.history), as /health says."""
    rewards: list[float] = []
    """Rewards of these actions, likewise."""
    before: dict[Text, Text] = {}
    """Words of the step before by role, as its reply had them in ``said``; for agents whose reflector reads its own
    (players.reflector.carry), as /health says."""
    said: dict[Text, Text] = {}
    """Words by role, used instead of asking that player, e.g. the planner's in the first reply of the episode."""
    seed: int | None = None
    """Random seed. With one seed for all states of an episode, each state still samples independently."""


class ActReply(BaseModel):
    """The frozen players' words and the agent's action."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    said: dict[str, str]
    """Words by role that were given or are new, e.g. those of the ``reflector``; empty without such players."""
    action: str
    index: int
    """Index of the action in the request; -1 in an environment without menus."""
    legal: bool
    """False if the policy's text named no legal action, so that the action was drawn at random."""
    thought: str | None
    """Text of a policy that writes before it acts, or its action as text."""
    probabilities: list[float]
    """Probabilities of the actions, in the order of the request; empty for a policy that writes its action."""
    logprob: float
    """Natural logarithm of the probability of the action; 0 for a policy that writes its action."""
    entropy: float
    """Entropy of the probabilities, in nats; 0 for a policy that writes its action."""


class ErrorReply(BaseModel):
    """Reply to a request that failed."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    detail: str
    """What was wrong, as a sentence."""
    error: dict[Literal["message"], str]
    """The same, where clients of OpenAI's API look for it."""


def describe_mistakes(errors: Sequence[Mapping[str, Any]], expected: type[BaseModel]) -> str:
    """Turn pydantic's errors about an ``expected`` request into a sentence that repeats none of its values."""
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return f"the request cannot be used: {'; '.join(_mistake(each, expected) for each in errors[:3])}{more}."


def _mistake(error: Mapping[str, Any], expected: type[BaseModel]) -> str:
    kind, field = error["type"], ".".join(str(key)[:MAX_NAME_CHARS] for key in error["loc"][1:])
    if kind == "json_invalid":
        return "its body is not JSON"
    if not field:
        return "its body is not JSON object, or content-type is not application/json"
    if kind == "extra_forbidden":
        return f"the field {field!r} is unknown; {nearest(field, expected.model_fields)}".removesuffix(".")
    if kind == "missing":
        return f"the field {field!r} is missing"
    wrong = str(error["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return f"the field {field!r} {wrong}"


def error_reply(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error reply in FastAPI's format and in OpenAI's."""
    reply = ErrorReply(detail=sentence, error={"message": sentence})
    return JSONResponse(reply.model_dump(), status, headers)


@cache
def _page() -> tuple[str, str]:
    """Return the page and the policy with which a browser runs its own script only, and asks only this server."""
    text = files("reflectrl.share").joinpath("page.html").read_text(encoding="utf-8")
    hashes = {
        kind: b64encode(sha256(re.findall(f"<{kind}>(.*)</{kind}>", text, re.DOTALL)[0].encode()).digest()).decode()
        for kind in ("script", "style")
    }
    own = f"script-src 'sha256-{hashes['script']}'; style-src 'sha256-{hashes['style']}'; connect-src 'self'"
    return text, f"default-src 'none'; {own}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


async def page() -> HTMLResponse:
    """Return the page on which a person tries states, and reads what there is to ask."""
    text, policy = _page()
    return HTMLResponse(text, headers={"content-security-policy": policy, "x-content-type-options": "nosniff"})


def check_origins(origins: Iterable[str]) -> None:
    """Check that origins are what a browser sends; a ``*`` would open the server to every page that its users visit.

    Raises:
        InvalidInput: another text.
    """
    for origin in origins:
        if not re.fullmatch(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:[1-9][0-9]{0,4})?", origin):
            raise InvalidInput(
                f"--allow-origin {origin!r} was given; expected the exact origin of a page in small letters, such as "
                "https://agents.example or http://localhost:3000."
            )


@dataclass(repr=False)
class Gate:
    """Middleware that checks host, page and key, limits the size and time of a body, and hides internal errors.

    FastAPI's ``HTTPBearer`` runs after the body is read, and for known paths only; Starlette's
    ``TrustedHostMiddleware`` cannot allow all IP addresses.
    """

    app: ASGIApp
    """The application behind it."""
    bounds: Bounds
    """Limits of a request."""
    key: str | None
    """Bearer key that clients must send; ``None`` for no check."""
    hosts: Iterable[str] = ()
    """Host names that clients may use, besides ``localhost`` and IP addresses."""
    pages: Iterable[str] = ()
    """Host names of web pages that may ask, besides the server's own."""
    origins: Collection[str] = ()
    """Origins of further web pages that may."""
    public: Collection[str] = ()
    """Paths that need no key."""

    def __post_init__(self) -> None:
        """Read host names in small letters."""
        self.hosts, self.pages = {"localhost", *map(str.lower, self.hosts)}, {*map(str.lower, self.pages)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or websocket, or pass on an event of the application's lifespan."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["type"] == "websocket":
            await self._open(headers, scope, receive, send)
            return
        try:
            self._check_origin(headers)
            if scope["path"] not in self.public:
                self._check_key(headers)
            body = await self._body(receive)
        except HTTPException as refused:
            reply = error_reply(refused.status_code, refused.detail, refused.headers)
            reply.headers["connection"] = "close"  # otherwise the rest of the body would be read
            await reply(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        try:
            await self.app(scope, replay, send)
        except Exception as error:  # noqa: BLE001 - a bug: its place goes to stderr, its message may hold private data
            frames = "".join(traceback.format_tb(error.__traceback__))
            tell_user(f"error: a request failed with {type(error).__name__}\n{frames}")
            await error_reply(500, "the server failed at this request; its log says where.")(scope, receive, send)

    async def _open(self, headers: Headers, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a websocket, or answer 403."""
        try:
            self._check_origin(headers)
            self._check_key(headers)
        except HTTPException:
            await send({"type": "websocket.close"})
        else:
            await self.app(scope, receive, send)

    def _check_origin(self, headers: Headers) -> None:
        """Refuse a host name that a web page may have pointed at this server (DNS rebinding), and pages of others.

        Browsers send some requests, and open websockets, for any page, but say whose.
        """
        given = headers.get("host", "").lower()
        host = host_of(f"//{given}")
        if host not in self.hosts and not ip_address(host):
            known = ", ".join(sorted(self.hosts))
            sentence = f"the header Host names {host[:60]!r}; expected {known} or an IP address"
            raise HTTPException(421, f"{sentence}: use one of them, or start the server with --served-as NAME.")
        page = headers.get("origin", f"//{given}").lower()
        if page.partition("//")[2] != given and host_of(page) not in self.pages and page not in self.origins:
            sentence = f"a web page of {page[:60]!r} asked; only those of this server's own address may"
            raise HTTPException(403, f"{sentence}, and those of --served-as (an environment) or --allow-origin.")

    def _check_key(self, headers: Headers) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        right = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), (self.key or "").encode())
        if self.key is not None and not right:
            sentence = "the key is missing or wrong; send it as `Authorization: Bearer KEY`."
            raise HTTPException(401, sentence, {"www-authenticate": "Bearer"})

    async def _body(self, receive: Receive) -> bytes:
        body, more, bounds = bytearray(), True, self.bounds
        try:
            async with asyncio.timeout(bounds.timeout_s):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the connection was closed before the request was complete.")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > bounds.max_body:
                        sentence = f"the request exceeds the limit of {bounds.max_body:,} bytes; send a shorter one."
                        raise HTTPException(413, sentence)
        except TimeoutError:
            raise HTTPException(408, f"the request did not arrive within {bounds.timeout_s:g} s.") from None
        return bytes(body)
