"""``serve``: an agent over HTTP, with ``/act`` for both players and an OpenAI-compatible chat for the reflector.

The only importer of FastAPI and uvicorn. Requests are never written to disk or to the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from reflectrl import __version__
from reflectrl.core import InvalidInput, Observation, WorkFailed, nearest
from reflectrl.core.errors import ModelFailed
from reflectrl.core.seeds import draw
from reflectrl.core.stop import tell_user
from reflectrl.pipeline.agent import Agent
from reflectrl.prompts import Prompt
from reflectrl.prompts.format import REFLECTION_CUE
from reflectrl.prompts.views import View
from reflectrl.serving.batcher import Batcher, Busy, Chat
from reflectrl.serving.bounds import Bounds
from reflectrl.serving.gate import Gate, RequestRefused, busy, error_reply
from reflectrl.serving.service import load_served_agent, reflector_info
from reflectrl.serving.wire import (
    MAX_NAME_CHARS,
    REFLECTOR,
    ActReply,
    ActRequest,
    ChatReply,
    ChatRequest,
    ErrorReply,
    describe_mistakes,
)

MAX_CHARS_PER_TOKEN = 32
"""Maximum length of the texts of a request, in characters per token of the longest prompt."""


def serve(
    run: Path,
    *,
    policy: str | None = None,
    greedy: bool | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    bounds: Bounds | None = None,
    served_as: Sequence[str] = (),
    allow_hosts: Collection[str] = (),
    ready: Callable[[str], None] = tell_user,
) -> None:
    """Serve the agent of a run folder, or an exported one, until SIGINT or SIGTERM; from the main thread only.

    Args:
        run: the run folder or the exported agent.
        policy: ``policy`` or ``policy-sft``; the later one if absent.
        greedy: choose the most probable action, or sample it; if absent, as ``load_agent``.
        host: address to listen on.
        port: port to listen on; 0 for any free one.
        key: bearer key that clients must send; ``None`` for no check.
        bounds: limits of a request.
        served_as: host names that clients may use, besides ``host``, ``localhost`` and IP addresses.
        allow_hosts: servers that the players of a folder from elsewhere may send states to.
        ready: receives a line with the agent and the address, once the server answers.

    Raises:
        InvalidInput: there is no such agent, it needs the expert, it came from elsewhere and asks for more than was
            allowed, or the address cannot be used.

    """
    bounds = bounds or Bounds()
    with listen(host, port) as listener:  # first, because models take long to load
        agent = load_served_agent(run, policy, greedy=greedy, allow_hosts=allow_hosts)
        address, number = listener.getsockname()[:2]
        public = not ipaddress.ip_address(address).is_loopback
        names = {host, *served_as, *([socket.gethostname()] if public else ())}
        if key is None and public:
            tell_user(f"warning: other machines can reach {address}, and no key is required; set --api-key-env.")
        url = f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"
        said = f"serving {agent.who} with {agent.way_to_play} on {url}"
        app = make_app(agent, bounds, key, names, ready=lambda: ready(said))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=_prompt_protocol(bounds),
                loop="asyncio",
                ws="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(bounds.timeout_s) + 1,
            )
        )
        with _stopped_by_signals(server):
            server.run(sockets=[listener])


def _prompt_protocol(bounds: Bounds) -> type[H11Protocol]:
    """Return uvicorn's protocol that limits the size of headers; here, they must also come in time.

    Of too many connections, it refuses the new ones; uvicorn's ``limit_concurrency`` would refuse all requests.
    """

    class PromptProtocol(H11Protocol):
        deadline: asyncio.TimerHandle

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in its base
            super().connection_made(transport)
            if len(self.connections) > bounds.max_waiting + bounds.max_idle:
                self.app = busy(close=True)
            self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self.deadline.cancel()
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            self.deadline.cancel()
            self._expect_request()
            super().on_response_complete()  # which may begin the next request

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:  # a reply to the request whose body has ended in nonsense would come second
                self.cycle.disconnected = True
            super().send_400_response(msg)

        def _expect_request(self) -> None:
            self.deadline = self.loop.call_later(bounds.timeout_s, self._end_without_request, self.cycle)

        def _end_without_request(self, last: RequestResponseCycle | None) -> None:
            if self.cycle is last:
                self.transport.close()

    return PromptProtocol


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server and not the process; uvicorn raises them again after its end."""
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that accepts connections.

    Raises:
        InvalidInput: the address cannot be used.

    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family, backlog=128)
    except (OSError, UnicodeError) as error:  # a name with an empty or too long part
        why = getattr(error, "strerror", None) or error
        raise InvalidInput(
            f"the server cannot listen on {host} port {port} ({why}); choose another --host or --port, such as "
            "--port 0 for any free one."
        ) from error
    # inherited by connections; without it, the body of a reply waits 40 ms for the acknowledgement of its headers
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def make_app(
    agent: Agent,
    bounds: Bounds,
    key: str | None = None,
    hosts: Iterable[str] = (),
    *,
    ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Return the application, see ``serve``; ``ready`` is called when it begins to answer."""
    players = Batcher(agent, bounds.max_waiting)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        players.start()
        ready()
        yield
        players.stop()

    app = FastAPI(
        title="reflectrl",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": ErrorReply}},
    )
    app.add_middleware(Gate, bounds=bounds, key=key, hosts=hosts)
    for kind in (RequestRefused, RequestValidationError, HTTPException, InvalidInput, WorkFailed, Busy, TimeoutError):
        app.add_exception_handler(kind, _answer_error)
    handlers = Handlers(agent, players, bounds.timeout_s)
    app.get("/health")(handlers.health)
    app.post("/act")(handlers.act)
    app.get("/v1/models")(handlers.models)
    app.post("/v1/chat/completions", response_model=ChatReply)(handlers.chat)
    return app


class Handlers:
    """Request handlers: they pass requests to the players, and turn the results into replies."""

    def __init__(self, agent: Agent, players: Batcher, timeout_s: float) -> None:
        self._agent = agent
        self._reflector = reflector_info(agent)
        self._players = players
        self._timeout_s = timeout_s
        recipe = agent.recipe
        self._max_length = max(section.max_length for section in (recipe.model, recipe.reflector_model) if section)

    async def health(self) -> dict[str, Any]:
        """Describe the agent and the state of the server."""
        agent = self._agent
        return {
            "status": "ok",
            "agent": agent.who,
            "environment": agent.recipe.env.name,
            "policy": agent.name,
            "reflector": agent.recipe.players.reflector.player,
            "greedy": agent.greedy,
            "max_actions": agent.max_actions,
            "history": asdict(agent.layout.recent),
            "carry": agent.layout.carry,
            "waiting": self._players.waiting,
            "version": __version__,
        }

    async def act(self, request: ActRequest) -> ActReply:
        """Reflect on a state and choose an action."""
        shown = slice(max(len(request.history) - self._agent.layout.recent.steps, 0), None)
        past = (*request.history[shown], *request.visited[shown])
        words = (*request.said.values(), *request.before.values())
        texts = (request.observation, request.task, *request.actions, *request.common, *past, *words)
        self._check_size(422, texts)
        observation = Observation(
            request.observation, tuple(request.actions), request.task, common=tuple(request.common)
        )
        try:
            state = self._agent.state(
                observation,
                request.history,
                said=request.said,
                seed=_seed(request.seed),
                visited=[Observation(text, ()) for text in request.visited],
                rewards=request.rewards,
                before=request.before,
            )
        except InvalidInput as error:
            raise RequestRefused(422, str(error)) from error
        move = await self._players.ask(state, self._timeout_s)
        chosen = move.decision
        probability = dict(zip(move.menu.actions, chosen.choice.probabilities, strict=False))
        return ActReply(
            said={**request.said, **{role: words.text for role, words in move.said.items()}},
            action=chosen.action,
            index=request.actions.index(chosen.action),
            legal=chosen.choice.legal,
            thought=None if chosen.choice.written is None else chosen.choice.written.text,
            probabilities=[probability[action] for action in request.actions if probability],
            logprob=chosen.logprob,
            entropy=chosen.entropy,
        )

    async def models(self) -> dict[str, Any]:
        """List the reflector, if there is one."""
        model = {"id": REFLECTOR, "object": "model", "created": 0, "owned_by": "reflectrl"}
        return {"object": "list", "data": [model] if self._reflector else []}

    async def chat(self, request: ChatRequest) -> Any:
        """Let the reflector complete a prompt of the kind it was trained on."""
        reflector, chat = self._reflector, request
        if chat.model != REFLECTOR or reflector is None:
            known = nearest(chat.model[:MAX_NAME_CHARS], [REFLECTOR] if reflector else [])
            raise RequestRefused(404, f"there is no model {chat.model[:MAX_NAME_CHARS]!r}; {known}", "model_not_found")
        if chat.temperature not in (None, reflector.temperature):
            raise RequestRefused(
                400,
                f"temperature={chat.temperature:g} was requested, but this reflector uses "
                f"{reflector.temperature:g}; leave it out.",
            )
        limit = chat.max_completion_tokens or chat.max_tokens
        if limit is not None and limit < reflector.max_tokens and reflector.tokenizer is None:
            raise RequestRefused(
                400,
                f"at most {limit} tokens were requested, but this reflector writes up to {reflector.max_tokens}; "
                "request that many.",
            )
        prompt = next((message.text for message in reversed(chat.messages) if message.role == "user"), "")
        if not prompt.endswith(REFLECTION_CUE):
            raise RequestRefused(
                400,
                f"the last of messages from a user does not end with {REFLECTION_CUE!r}; expected there a whole prompt "
                "of those that the reflector was trained on, up to this cue.",
            )
        self._check_size(400, [prompt])
        view = View(Prompt(prompt, (), ""), Observation(prompt, ()), (), {})
        words = await self._players.ask(Chat(view, draw(_seed(chat.seed), 0, "reflector")), self._timeout_s)
        stop = [chat.stop] if isinstance(chat.stop, str) else chat.stop or []
        reply = reflector.completion(prompt, words.text, limit, stop)
        if not chat.stream:
            return reply
        with_usage = chat.stream_options is not None and chat.stream_options.include_usage is True
        return Response(reply.events(with_usage=with_usage), media_type="text/event-stream")

    def _check_size(self, status: int, texts: Iterable[str]) -> None:
        """Refuse texts of which a prompt could show only a small part: to cut them would keep the players' thread busy.

        Raises:
            RequestRefused: they are too long.

        """
        size, most = sum(map(len, texts)), MAX_CHARS_PER_TOKEN * self._max_length
        if size > most:
            raise RequestRefused(
                status,
                f"the texts have {size:,} characters, but prompts have at most {self._max_length:,} tokens; expected "
                f"at most {most:,} characters: send shorter texts.",
                "context_length_exceeded",
            )


def _seed(given: int | None) -> int:
    return secrets.randbelow(2**31) if given is None else given


# ---- errors ----------------------------------------------------------------------------------------------------------


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Return an error reply; invalid input has status 422, and 400 under /v1, as at OpenAI."""
    unusable = 400 if request.url.path.startswith("/v1/") else 422
    if isinstance(error, RequestRefused):
        return error_reply(error.status, str(error), error.code)
    if isinstance(error, RequestValidationError):
        known = ChatRequest.model_fields if unusable == 400 else ActRequest.model_fields
        return error_reply(unusable, describe_mistakes(error.errors(), list(known)))
    if isinstance(error, InvalidInput):  # the request was valid, so its prompt is too long
        return error_reply(unusable, str(error), "context_length_exceeded")
    if isinstance(error, WorkFailed):
        return error_reply(500 if isinstance(error, ModelFailed) else 502, str(error))
    if isinstance(error, Busy):
        return busy()
    if isinstance(error, TimeoutError):
        return error_reply(504, "no reply within the time limit; try again later.", headers={"retry-after": "1"})
    if isinstance(error, HTTPException) and error.status_code == 400:  # JSON that is too deep, or no UTF-8
        return error_reply(unusable, "the request cannot be used: its body is not JSON.")
    if isinstance(error, HTTPException):  # no such path or method
        sentence = f"{request.method} {request.url.path[:MAX_NAME_CHARS]!r}: {error.detail.lower()}; see /openapi.json."
        return error_reply(error.status_code, sentence, headers=dict(error.headers or {}))
    raise error
