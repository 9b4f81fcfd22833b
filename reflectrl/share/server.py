"""``serve``: an agent over HTTP, whose ``/act`` maps a state to an action; ``serve_env``: an environment.

The same agent is a chat model at ``/v1/chat/completions``, and the page at ``/`` asks ``/act``.

The only importer of uvicorn. Requests are never written to disk or to the log. TLS, limits per client, and
clients that open connections without sending a request are left to a reverse proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import queue
import secrets
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from reflectrl.config.agent_file import read_agent_file
from reflectrl.core import NO_MENU, InvalidInput, Observation, WorkFailed
from reflectrl.core.addresses import listen
from reflectrl.core.errors import ModelFailed
from reflectrl.core.origin import VERSION
from reflectrl.core.run_files import POLICIES
from reflectrl.core.stop import tell_user
from reflectrl.endpoint.journal import RejectedReply
from reflectrl.endpoint.replies import Refused
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.pipeline.folder import read_recipe
from reflectrl.prompts.views import State
from reflectrl.rollout import Move
from reflectrl.share import Bounds
from reflectrl.share.chat import ChatRequest, as_act, completion, events
from reflectrl.share.wire import (
    ActReply,
    ActRequest,
    ErrorReply,
    Gate,
    check_origins,
    describe_mistakes,
    error_reply,
    page,
)

CHAT = "/v1/chat/completions"
PAGES = ("/", "/docs")
"""Paths of the page, which holds nothing of the agent's and asks for the key itself."""
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
    origins: Sequence[str] = (),
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
        origins: origins of web pages whose scripts may send requests and read the replies (CORS).
        ready: receives a line with the agent and the address, once the server answers.

    Raises:
        InvalidInput: there is no such agent, it needs the expert, it came from elsewhere and asks for more than was
            allowed, the address cannot be used, or an origin is not one.

    """
    check_origins(origins)
    bounds = bounds or Bounds()
    with listen(host, port) as listener:  # first, because models take long to load
        agent = load_served_agent(run, policy, greedy=greedy, allow_hosts=allow_hosts)

        def make(names: Iterable[str], url: str) -> FastAPI:
            said = f"serving {agent.who} with {agent.way_to_play} on {url}"
            return make_app(agent, bounds, key, names, origins=origins, ready=lambda: ready(said))

        run_app(make, listener, host, key=key, bounds=bounds, served_as=served_as)


def serve_env(
    name: str,
    options: Mapping[str, Any],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    key: str | None = None,
    sessions: int = 8,
    served_as: Sequence[str] = (),
    ready: Callable[[str], None] = tell_user,
) -> None:
    """Serve an environment to clients of OpenEnv until SIGINT or SIGTERM; from the main thread only.

    Args:
        name: registered name of the environment, or ``module:Class``.
        options: its constructor's arguments.
        host: address to listen on.
        port: port to listen on; 0 for any free one.
        key: bearer key that clients must send; ``None`` for no check.
        sessions: maximum number of sessions at a time, each with an environment of its own.
        served_as: host names that clients may use, besides ``host``, ``localhost`` and IP addresses; a web page of one
            of them may play too, as may one of the server's own address.
        ready: receives a line with the environment and the address.

    Raises:
        InvalidInput: no such environment, or an address that cannot be used.

    """
    from reflectrl.share.env_server import env_app

    app, bounds = env_app(name, options, sessions), Bounds()

    def gated(names: Iterable[str], url: str) -> Gate:
        app.router.on_startup.append(lambda: ready(f"serving {name} on {url} for clients of OpenEnv"))
        return Gate(app, bounds, key, names, pages=served_as)

    with listen(host, port) as listener:
        run_app(gated, listener, host, key=key, bounds=bounds, served_as=served_as, websockets=True)


def run_app(
    make: Callable[[Iterable[str], str], ASGIApp],
    listener: socket.socket,
    host: str,
    *,
    key: str | None,
    bounds: Bounds,
    served_as: Sequence[str] = (),
    websockets: bool = False,
) -> None:
    """Answer requests until SIGINT or SIGTERM; from the main thread only.

    Args:
        make: returns the application for host names that clients may use, and the server's address.
        listener: socket that accepts connections.
        host: address that was asked for, which clients may use.
        key: bearer key that clients must send; ``None`` for no check, with a warning where others can reach it.
        bounds: limits of a request, or of a message of a websocket.
        served_as: further host names that clients may use.
        websockets: whether the application answers them.

    """
    address, number = listener.getsockname()[:2]
    public = not ipaddress.ip_address(address).is_loopback
    if key is None and public:
        tell_user(f"warning: other machines can reach {address}, and no key is required; set --api-key-env.")
    names = {host, *served_as, *([socket.gethostname()] if public else ())}
    url = f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"
    server = uvicorn.Server(
        uvicorn.Config(
            make(names, url),
            http="h11",
            loop="asyncio",
            ws="websockets-sansio" if websockets else "none",
            ws_max_size=bounds.max_body,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=bounds.max_waiting + bounds.max_idle,
            timeout_graceful_shutdown=math.ceil(bounds.timeout_s) + 1,
        )
    )
    with _stopped_by_signals(server):
        server.run(sockets=[listener])


@contextlib.contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the server and not the process; uvicorn raises them again after its end."""
    before = {number: signal.signal(number, server.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def load_served_agent(
    run: Path, policy: str | None = None, *, greedy: bool | None = None, allow_hosts: Collection[str] = ()
) -> Agent:
    """Load the agent of a run folder, or an exported one; arguments are those of ``load_agent``.

    Raises:
        InvalidInput: as ``load_agent``; and one of its players is the expert, or it reads pictures.

    """
    recipe = read_recipe(run, hosts=allow_hosts, given=None)
    experts = [
        f"players.{kind.role.name}.player"
        for kind, section in recipe.players.frozen
        if kind.role.speaks_before and section.kind == "expert"
    ]
    if experts:
        raise InvalidInput(
            f"{run} was trained with the expert's words ({', '.join(experts)}), which exist only inside the "
            f"environment; serve a run with another {experts[0]}, or use this one with `reflectrl play`."
        )
    if recipe.model.images:
        raise InvalidInput(
            f"{run} was trained to read pictures (model.images), but requests carry text; serve an agent that reads "
            "text, or use this one with reflectrl.load_agent."
        )
    agent = load_agent(run, policy=policy, greedy=greedy, reuse_replies=False, allow_hosts=allow_hosts)
    which = "exported agent" if read_agent_file(run) else f"policy after {POLICIES[agent.name].upper()}"
    who = f"{run.resolve().name} ({which})"
    # menus in the order given, also for an agent trained on shuffled ones: to it, all orders are the same
    return replace(agent, who=who, layout=replace(agent.layout, shuffle=False))


def make_app(
    agent: Agent,
    bounds: Bounds,
    key: str | None = None,
    hosts: Iterable[str] = (),
    *,
    origins: Sequence[str] = (),
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
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": ErrorReply}},
    )
    app.add_middleware(Gate, bounds=bounds, key=key, hosts=hosts, origins=origins, public=PAGES)
    if origins:  # before the gate, since browsers ask for permission without the key
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    app.add_exception_handler(RequestValidationError, _answer_mistakes)
    for kind in (InvalidInput, WorkFailed):
        app.add_exception_handler(kind, _answer_error)
    handlers = Handlers(agent, players, bounds.timeout_s)
    app.get("/health")(handlers.health)
    app.post("/act")(handlers.act)
    app.get("/v1/models")(handlers.models)
    app.post(CHAT, response_model=None)(handlers.chat)
    for path in PAGES:
        app.get(path, include_in_schema=False)(page)
    return app


class Handlers:
    """Request handlers: they pass requests to the players, and turn the results into replies."""

    def __init__(self, agent: Agent, players: Batcher, timeout_s: float) -> None:
        self._agent = agent
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
            "menu": agent.layout.menu,
            "waiting": self._players.waiting,
            "version": VERSION,
        }

    async def act(self, request: ActRequest) -> ActReply:
        """Reflect on a state and choose an action."""
        shown = slice(max(len(request.history) - self._agent.layout.recent.steps, 0), None)
        past = (*request.history[shown], *request.visited[shown])
        words = (*request.said.values(), *request.before.values())
        texts = (request.observation, request.task, *request.actions, *request.common, *past, *words)
        self._check_size(texts)
        observation = Observation(
            request.observation, tuple(request.actions), request.task, common=tuple(request.common)
        )
        state = self._agent.state(
            observation,
            request.history,
            said=request.said,
            seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
            visited=[Observation(text, ()) for text in request.visited],
            rewards=request.rewards,
            before=request.before,
        )
        move = await self._players.ask(state, self._timeout_s)
        chosen = move.decision
        probability = dict(zip(move.menu.actions, chosen.choice.probabilities, strict=False))
        return ActReply(
            said={**request.said, **{role: words.text for role, words in move.said.items()}},
            action=chosen.action,
            index=request.actions.index(chosen.action) if request.actions else NO_MENU,
            legal=chosen.choice.legal,
            thought=None if chosen.choice.written is None else chosen.choice.written.text,
            probabilities=[probability[action] for action in request.actions if probability],
            logprob=chosen.logprob,
            entropy=chosen.entropy,
        )

    async def models(self) -> dict[str, Any]:
        """List the one model, as clients of OpenAI's API ask for it."""
        model = {"id": self._agent.recipe.name, "object": "model", "created": 0, "owned_by": "reflectrl"}
        return {"object": "list", "data": [model]}

    async def chat(self, request: ChatRequest) -> JSONResponse | StreamingResponse:
        """Choose an action as a chat model: OpenAI's API, with tools or choices as the menu."""
        asked = as_act(request, self._agent, self._agent.recipe.name)
        whole = completion(request, asked, await self.act(asked.request))
        if request.stream:
            return StreamingResponse(events(whole), media_type="text/event-stream")
        return JSONResponse(whole)

    def _check_size(self, texts: Iterable[str]) -> None:
        """Refuse texts of which a prompt could show only a small part: to cut them would keep the players' thread busy.

        Raises:
            InvalidInput: they are too long.

        """
        size, most = sum(map(len, texts)), MAX_CHARS_PER_TOKEN * self._max_length
        if size > most:
            raise InvalidInput(
                f"the texts have {size:,} characters, but prompts have at most {self._max_length:,} tokens; expected "
                f"at most {most:,} characters: send shorter texts."
            )


# ---- the players' thread ---------------------------------------------------------------------------------------------

# Models take lists of prompts and are not made for several threads. Requests that arrive while they are busy are
# answered together when they are free. An answer does not depend on the others, but for the last bits of its
# probabilities.

MAX_BATCH = 64
"""Requests answered in one batch."""


class Busy(WorkFailed):
    """The queue of pending requests is full."""


class Late(WorkFailed):
    """A reply took too long."""


class Batcher:
    """One thread in which the players answer all waiting requests side by side, and its queue.

    Args:
        agent: its players answer; no other thread may use them meanwhile.
        max_waiting: maximum number of unanswered requests.

    """

    def __init__(self, agent: Agent, max_waiting: int) -> None:
        self._agent = agent
        self._max_waiting = max_waiting
        self._queue: queue.SimpleQueue[tuple[State, Future[Move]] | None] = queue.SimpleQueue()
        # a daemon, so that a chat endpoint that hangs cannot keep the process alive
        self._thread = threading.Thread(target=self._work, name="players", daemon=True)
        self.waiting = 0
        """Number of unanswered requests."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread once the waiting requests are answered."""
        self._queue.put(None)

    async def ask(self, state: State, timeout_s: float) -> Move:
        """Return the agent's move in ``state``.

        Raises:
            Busy: too many requests are pending.
            Late: it took longer than ``timeout_s``.
            InvalidInput: the prompt is too long for the model.
            WorkFailed: a chat endpoint failed, or a model's numbers are not finite.

        """
        if self.waiting >= self._max_waiting:
            raise Busy("too many requests are pending; try again in a second.")
        answer: Future[Move] = Future()
        self.waiting += 1
        try:
            self._queue.put((state, answer))
            return await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
        except TimeoutError:
            raise Late("no reply within the time limit; try again later.") from None
        finally:  # the thread skips a request whose client gave up
            self.waiting -= 1

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            jobs = [job]
            while len(jobs) < MAX_BATCH and not self._queue.empty():
                if (job := self._queue.get()) is None:
                    self._queue.put(None)
                    break
                jobs.append(job)
            if jobs := [job for job in jobs if job[1].set_running_or_notify_cancel()]:
                self._answer(jobs)

    def _answer(self, jobs: Sequence[tuple[State, Future[Move]]]) -> None:
        try:
            moves = self._agent.play([state for state, _ in jobs])
        except (InvalidInput, ModelFailed, RejectedReply, Refused) as error:
            if len(jobs) > 1:  # perhaps only one of them cannot be answered: the others get their answers
                half = len(jobs) // 2
                self._answer(jobs[:half])
                self._answer(jobs[half:])
            else:
                jobs[0][1].set_exception(error)
        except Exception as error:  # noqa: BLE001 - the requests fail with the error, the thread continues
            for _, answer in jobs:
                answer.set_exception(error)
        else:
            for (_, answer), move in zip(jobs, moves, strict=True):
                answer.set_result(move)


STATUSES: Mapping[type, int] = {InvalidInput: 422, WorkFailed: 502, ModelFailed: 500, Busy: 503, Late: 504}
"""HTTP statuses of errors; of an error with several classes in it, that of the most special one."""


async def _answer_error(_: Request, error: Exception) -> JSONResponse:
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    return error_reply(status, str(error), {"retry-after": "1"} if status in (503, 504) else None)


async def _answer_mistakes(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    expected = ChatRequest if request.url.path == CHAT else ActRequest
    return error_reply(422, describe_mistakes(error.errors(), expected))
