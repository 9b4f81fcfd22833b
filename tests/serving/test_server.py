"""``reflectrl serve`` as its clients meet it: a real process, real HTTP, the client library of OpenAI."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from records import chose, reflector_prompt_of, shown
from run_folders import forget_digests
from scripted_endpoint import ScriptedEndpoint
from trained_runs import TrainedRuns
from warm_processes import WarmProcess, command_line

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import Decision, InvalidInput, Trajectory, WorkFailed
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.agent import load_agent
from reflectrl.players import reflecting
from reflectrl.players.remote import Endpoint, RemoteReflector
from reflectrl.prompts import Prompt
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, rollout
from reflectrl.serving.gate import Bounds
from reflectrl.serving.server import listen, make_app, serve
from reflectrl.serving.service import ServedAgent, load_served_agent

KEY = "sk-of-the-test"
STATE = {"observation": "Number 2, target 6.", "actions": ["add one", "subtract one"]}


@pytest.fixture(scope="module")
def run(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture(scope="module")
def service(run: Path) -> ServedAgent:
    return load_served_agent(run)


@dataclass
class Server:
    """A process of ``reflectrl serve``."""

    process: WarmProcess
    ready: str

    @property
    def url(self) -> str:
        return self.ready.rpartition(" ")[2].strip()


@contextlib.contextmanager
def served(run: Path, log: Path, *options: str) -> Iterator[Server]:
    arguments = ("serve", str(run), "--port", "0", "--api-key-env", "SERVE_KEY", *options)
    process = WarmProcess(log, command_line, *arguments, env={"SERVE_KEY": KEY})
    try:
        while "\n" not in (said := log.read_text() if log.exists() else ""):
            assert process.poll() is None, said
            time.sleep(0.02)
        yield Server(process, said)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(run, tmp_path_factory.mktemp("server") / "log", "--max-body", "4000") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=server.url, timeout=300, trust_env=False, headers=headers) as client:
        yield client


def openai_client(server: Server, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@contextlib.asynccontextmanager
async def in_process(
    service: ServedAgent, bounds: Bounds | None = None, hosts: Sequence[str] = ()
) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the same application in this process, where players can be held up."""
    app = make_app(service, bounds or Bounds(), hosts=hosts)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client,
    ):
        yield client


def request(service: ServedAgent, path: str, **options: Any) -> httpx2.Response:
    """The reply to one request, a GET without options."""

    async def ask() -> httpx2.Response:
        async with in_process(service, options.pop("bounds", None), options.pop("hosts", ())) as client:
            return await (client.post(path, **options) if options else client.get(path))

    return asyncio.run(ask())


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """Status and sentence of an error in the shape of OpenAI's."""
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "code"}
    assert answer.json()["error"]["message"].endswith(".")
    return answer.status_code, answer.json()["error"]["message"]


def play(ask: Callable[[dict[str, Any]], dict[str, Any]], task_number: int, seed: int) -> list[dict[str, Any]]:
    """The replies to the states of one episode."""
    env = NumberLine(size=8)
    env.reset(seed=seed, options={"task": env.tasks("test")[task_number]})
    history: list[str] = []
    replies = []
    over = False
    while not over:
        seen = env.observation
        state = {"observation": seen.text, "actions": list(seen.actions), "task": seen.task, "history": history}
        replies.append(ask({**state, "seed": seed}))
        history.append(replies[-1]["action"])
        _, _, terminated, truncated, _ = env.step(history[-1])
        over = terminated or truncated
    return replies


def play_here(run: Path, task_number: int, seed: int, *, greedy: bool) -> Trajectory:
    agent, env = load_agent(run, greedy=greedy), NumberLine(size=8)
    episode = Episode(env.tasks("test")[task_number], seed)
    (played,) = rollout([env], [episode], policy=agent.policy, seats=agent.seats, layout=agent.layout)
    return played


def assert_same(replies: Sequence[dict[str, Any]], played: Trajectory) -> None:
    assert [reply["action"] for reply in replies] == list(played.actions)
    for reply, turn in zip(replies, played.turns, strict=True):
        assert reply["reflection"] == turn.reflection
        assert reply["index"] == turn.decision.choice.index
        assert reply["probabilities"] == pytest.approx(turn.decision.choice.probabilities, abs=1e-5)
        assert reply["logprob"] == pytest.approx(turn.decision.logprob, abs=1e-4)
        assert reply["entropy"] == pytest.approx(turn.decision.entropy, abs=1e-4)


# ---- both players ----------------------------------------------------------------------------------------------------


def test_an_episode_over_http_is_the_episode_of_a_rollout(run: Path, client: httpx2.Client) -> None:
    replies = play(lambda state: client.post("/act", json=state).raise_for_status().json(), 0, seed=0)
    assert_same(replies, play_here(run, 0, 0, greedy=True))


def test_a_drawn_episode_is_that_of_a_rollout_with_the_same_seed(run: Path) -> None:
    drawing = load_served_agent(run, greedy=False)

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = request(drawing, "/act", json=state).json()
        return reply

    drawn = {seed: play(ask, 1, seed) for seed in (3, 4)}
    for seed, replies in drawn.items():
        assert_same(replies, play_here(run, 1, seed, greedy=False))
    assert len({tuple(reply["action"] for reply in replies) for replies in drawn.values()}) == 2
    assert {ask(STATE)["index"] for _ in range(40)} == {0, 1}  # without a seed, each draws anew


def test_a_reflection_that_is_given_is_used_instead(client: httpx2.Client) -> None:
    said = ("The target is lower.", "The target is higher.")
    lower, higher = (client.post("/act", json={**STATE, "reflection": words}).json() for words in said)
    assert (lower["reflection"], higher["reflection"]) == said
    assert lower["probabilities"] != higher["probabilities"]
    own = [client.post("/act", json={**STATE, **none}).json() for none in ({}, {"reflection": None})]
    assert (own[0]["reflection"], own[0]["action"]) == (own[1]["reflection"], own[1]["action"])
    # the second is read with what was kept of the first: as another batch, it may be rounded differently
    assert own[0]["probabilities"] == pytest.approx(own[1]["probabilities"], abs=1e-5)


def test_thirty_requests_at_once_are_answered_as_one_by_one(client: httpx2.Client) -> None:
    states = [{**STATE, "observation": f"Number {n % 8}, target {(n * 5 + 1) % 8}."} for n in range(30)]
    alone = [client.post("/act", json=state).json() for state in states]
    with ThreadPoolExecutor(30) as crowd:
        together = list(crowd.map(lambda state: client.post("/act", json=state).json(), states))
    for one, other in zip(alone, together, strict=True):
        assert (one["reflection"], one["action"]) == (other["reflection"], other["action"])
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_the_server_describes_itself_and_loads_no_page_from_elsewhere(server: Server, client: httpx2.Client) -> None:
    assert "small (policy after RLFT) on http://127.0.0.1:" in server.ready
    told = client.get("/health").json()
    assert (told["environment"], told["policy"], told["reflector"]) == ("number_line", "policy", "local")
    assert (told["agent"], told["greedy"], told["waiting"]) == ("small (policy after RLFT)", True, 0)
    assert {"/act", "/health", "/v1/models", "/v1/chat/completions"} == set(client.get("/openapi.json").json()["paths"])
    assert {client.get(page).status_code for page in ("/docs", "/redoc")} == {404}


# ---- the reflector as a chat model -----------------------------------------------------------------------------------


def prompt_of(service: ServedAgent, number: int = 2) -> Prompt:
    env = NumberLine(size=8)
    env.reset(seed=0, options={"task": env.tasks("test")[number]})
    return reflector_prompt_of(service.agent.layout, env.observation)


def test_the_client_of_openai_talks_to_the_reflector(service: ServedAgent, server: Server) -> None:
    prompt = prompt_of(service)
    assert service.agent.reflector is not None
    (said,) = service.agent.reflector.say(shown([prompt]), [0.0])
    with openai_client(server, "wrong") as api, pytest.raises(openai.AuthenticationError):
        api.models.list()
    with openai_client(server) as api:
        assert [model.id for model in api.models.list()] == ["reflector"]
        chat: Any = [{"role": "system", "content": "Not shown."}, {"role": "user", "content": prompt.text}]
        reply = api.chat.completions.create(model="reflector", messages=chat, max_tokens=200, temperature=0)
        parts: Any = [{"role": "user", "content": [{"type": "text", "text": prompt.text}]}]
        assert api.chat.completions.create(model="reflector", messages=parts).choices[0].message.content == said.text
        short = api.chat.completions.create(model="reflector", messages=chat, max_tokens=1)
    assert said.text
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (said.text, "stop")
    assert reply.usage is not None
    assert 0 < reply.usage.completion_tokens < reply.usage.prompt_tokens < reply.usage.total_tokens
    assert short.choices[0].finish_reason == "length"
    assert said.text.startswith(short.choices[0].message.content or "nothing")
    assert short.usage is not None
    assert short.usage.completion_tokens == 1


def test_another_run_reflects_through_it(run: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVE_KEY", KEY)
    agent, env = load_agent(run), NumberLine(size=8)
    remote = RemoteReflector(Endpoint("reflector", f"{server.url}/v1", api_key_env="SERVE_KEY", max_attempts=1))
    episodes = [Episode(task, 0) for task in env.tasks("test")[:3]]
    envs = [NumberLine(size=8) for _ in episodes]
    local, through = (
        rollout(envs, episodes, policy=agent.policy, seats=reflecting(reflector), layout=agent.layout)
        for reflector in (agent.reflector, remote)
    )
    assert [[turn.reflection for turn in played.turns] for played in through] == [
        [turn.reflection for turn in played.turns] for played in local
    ]
    assert [played.actions for played in through] == [played.actions for played in local]
    before = remote.client.usage.calls
    assert (
        remote.say(shown([Prompt("", (), "1 2 " * 300)]), [0.0])[0].text == ""
    )  # too long: rejected, and not repeated
    assert remote.client.usage.calls == before + 1


CHAT = {"model": "reflector", "messages": [{"role": "user", "content": "Number 2, target 6.\nReflection:"}]}


@pytest.mark.parametrize(
    ("change", "status", "fact"),
    [
        ({"stream": True}, 400, "stream"),
        ({"n": 2}, 400, "n above 1"),
        ({"temperature": 0.5}, 400, "temperature=0.5"),
        ({"model": "gpt-4o"}, 404, "'gpt-4o'"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"content": "x"}]}, 400, "'messages.0.role'"),
        ({"messages": [{"role": "user", "content": "1 2 " * 300}]}, 400, "tokens"),
        ({"max_tokens": 0}, 400, "'max_tokens'"),
        ({"tools": []}, 400, "'tools'"),
        ({"messages": ["x"]}, 400, "'messages.0' should be an object."),
        *(
            ({"messages": [{"role": "user", "content": content}]}, 400, f"'messages.0.content{fact}.")
            for content, fact in (
                (5, "' should be a valid string or should be a valid list"),
                ([5], ".0' should be an object"),
                ([{"type": "text"}], ".0.text' is missing"),
                ([{"type": "text", "text": 5}], ".0.text' should be a valid string"),
                ([{"type": "text", "text": "x", "a[b]": 5}], ".0.a[b]' is unknown"),
            )
        ),
    ],
)
def test_a_chat_that_cannot_be_had_is_refused(
    change: dict[str, Any], status: int, fact: str, client: httpx2.Client
) -> None:
    found = refusal(client.post("/v1/chat/completions", json={**CHAT, **change}))
    assert found[0] == status
    assert fact in found[1]


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"actions": []}, "action"),
        ({"actions": [f"go {n}" for n in range(9)]}, "9 actions"),
        ({"actions": ["wait", "wait"]}, "action"),
        ({"actions": ["wait\nB. win", "go"]}, "'actions.0'"),
        ({"history": ["wait\nB. win"]}, "'history.0'"),
        ({"task": "1 2 " * 300}, "tokens"),
        ({"observation": 5}, "'observation'"),
        ({"action": ["go"]}, "'actions'"),
        ({"seed": "1"}, "'seed'"),
        ({"x" * 100: 1}, f"'{'x' * 60}'"),
    ],
)
def test_a_state_that_cannot_be_played_is_refused(change: dict[str, Any], fact: str, client: httpx2.Client) -> None:
    found = refusal(client.post("/act", json={**STATE, **change}))
    assert found[0] == 422
    assert fact in found[1]


def test_a_state_with_a_long_text_is_played_as_in_an_episode(client: httpx2.Client) -> None:
    done = client.post("/act", json={**STATE, "observation": "1 2 " * 300})
    assert done.status_code == 200
    assert done.json()["action"] in STATE["actions"]


BODIES = (
    b'{"observation": ',
    b"[]",
    b"1",
    b"",
    b"\xff\xfe",
    b"[" * 3000,
    b'{"observation": "\\ud800", "actions": ["a"]}',
)


def test_a_body_that_is_no_request_is_refused(client: httpx2.Client) -> None:
    for body in BODIES:
        status, sentence = refusal(client.post("/act", content=body, headers={"content-type": "application/json"}))
        assert status in (400, 422), body
        assert "Traceback" not in sentence


def test_a_form_an_unknown_path_and_a_large_body_are_refused(client: httpx2.Client) -> None:
    form = client.post("/act", content=json.dumps(STATE).encode(), headers={"content-type": "text/plain"})
    assert refusal(form)[0] == 422
    assert refusal(client.get("/nothing"))[0] == 404
    assert refusal(client.get("/act"))[0] == 405
    large = json.dumps({**STATE, "observation": "x" * 4000}).encode()
    for content in (large, iter([large[:1000], large[1000:]])):
        status, sentence = refusal(client.post("/act", content=content, headers={"content-type": "application/json"}))
        assert (status, "4,000 bytes" in sentence) == (413, True)


CHUNK = 100_000


def over_a_socket(server: Server, head: str, body: bytes = b"") -> bytes:
    """What comes back until the server closes the connection, while ``body`` is sent again and again."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(f"{head}\r\n\r\n".replace("\n", "\r\n").replace("\r\r", "\r").encode())
        with contextlib.suppress(OSError):  # the server has hung up
            for _ in range(200 if body else 0):
                line.sendall(body)
        with contextlib.suppress(OSError):
            while part := line.recv(65536):
                answer += part
    return answer


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (f"authorization: Bearer {KEY}\ncontent-length: 900000000000", 413),
        (f"authorization: Bearer {KEY}\ntransfer-encoding: chunked", 413),
        ("content-length: 900000000000", 401),
        ("transfer-encoding: chunked", 401),
    ],
)
def test_an_endless_request_is_refused_and_hung_up_on(more: str, status: int, server: Server) -> None:
    chunk = b"%x\r\n%b\r\n" % (CHUNK, b"x" * CHUNK) if "chunked" in more else b"x" * CHUNK
    answer = over_a_socket(
        server, f"POST /act HTTP/1.1\nhost: localhost\ncontent-type: application/json\n{more}", chunk
    )
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nconnection: close\r\n" in answer


def test_a_name_that_a_web_page_led_here_is_refused(
    server: Server, client: httpx2.Client, service: ServedAgent
) -> None:
    for host in ("rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example:8000", "[::1", ""):
        status, sentence = refusal(client.get("/health", headers={"host": host}))
        assert (status, "--allow-host" in sentence) == (421, True)
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:8000", "10.1.2.3"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    nameless = over_a_socket(server, f"GET /health HTTP/1.0\nauthorization: Bearer {KEY}")
    assert nameless.startswith(b"HTTP/1.1 421 ")
    named = {"headers": {"host": "agents.example"}, "json": STATE}
    assert request(service, "/act", hosts=["Agents.example"], **named).status_code == 200
    assert request(service, "/act", **named).status_code == 421


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}", KEY])
def test_without_the_key_nothing_is_told(given: str, server: Server) -> None:
    headers = {"authorization": given} if given else {}
    with httpx2.Client(base_url=server.url, timeout=300, trust_env=False, headers=headers) as stranger:
        for answer in (stranger.get("/health"), stranger.post("/act", json=STATE), stranger.get("/openapi.json")):
            status, sentence = refusal(answer)
            assert (status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert KEY not in sentence


# ---- time, and what breaks -------------------------------------------------------------------------------------------


class SlowPolicy:
    """Acts when it is told to; remembers how many it played together."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.busy = threading.Event()
        self.batches: list[int] = []
        self.error: Exception | None = None

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:
        self.busy.set()
        self.go.wait(10)
        self.batches.append(len(views))
        if self.error is not None:
            raise self.error
        if any("long" in view.prompt.text for view in views):
            raise InvalidInput("one of them is too long.")
        return [
            chose(int(draw > 2), view.menu.actions[0], 0.0, 0.0, (1.0, 0.0))
            for view, draw in zip(views, draws, strict=True)
        ]


def slow(service: ServedAgent, policy: SlowPolicy) -> ServedAgent:
    """An agent without a reflector."""
    return replace(service, agent=replace(service.agent, policy=policy, seats=()), reflector=None)


def test_who_comes_when_too_many_wait_is_told_to_come_again(service: ServedAgent) -> None:
    async def crowd() -> list[httpx2.Response]:
        policy = SlowPolicy()
        async with in_process(slow(service, policy), Bounds(max_waiting=3)) as client:
            waiting = [asyncio.create_task(client.post("/act", json=STATE)) for _ in range(3)]
            while (await client.get("/health")).json()["waiting"] < 3:
                await asyncio.sleep(0.01)
            late = await client.post("/act", json=STATE)
            policy.go.set()
            return [late, *await asyncio.gather(*waiting), await client.post("/act", json=STATE)]

    late, *answered = asyncio.run(crowd())
    assert refusal(late)[0] == 503
    assert late.headers["retry-after"] == "1"
    assert [answer.status_code for answer in answered] == [200] * 4


def test_what_takes_too_long_is_told_so_and_what_nobody_waits_for_is_not_played(service: ServedAgent) -> None:
    policy = SlowPolicy()

    async def impatient() -> list[httpx2.Response]:
        async with in_process(slow(service, policy), Bounds(timeout_s=0.2)) as client:
            first = asyncio.create_task(client.post("/act", json=STATE))
            await asyncio.to_thread(policy.busy.wait)
            late = await asyncio.gather(first, *(client.post("/act", json=STATE) for _ in range(4)))
            policy.go.set()
            return [*late, await client.post("/act", json=STATE)]

    *late, last = asyncio.run(impatient())
    assert [refusal(answer)[0] for answer in late] == [504] * 5
    assert last.status_code == 200
    assert policy.batches == [1, 1]  # of the five, only the one that was under way when its time was over


def test_what_waits_is_played_together_and_nobody_suffers_for_another(service: ServedAgent) -> None:
    policy = SlowPolicy()

    async def crowd() -> list[httpx2.Response]:
        async with in_process(slow(service, policy)) as client:
            states = [{**STATE, "observation": "long" if number == 3 else "short"} for number in range(9)]
            asked = [asyncio.create_task(client.post("/act", json=states[0]))]
            await asyncio.to_thread(policy.busy.wait)
            asked += [asyncio.create_task(client.post("/act", json=state)) for state in states[1:]]
            while (await client.get("/health")).json()["waiting"] < 9:
                await asyncio.sleep(0.01)
            policy.go.set()
            return list(await asyncio.gather(*asked))

    answers = asyncio.run(crowd())
    assert [answer.status_code for answer in answers] == [200] * 3 + [422] + [200] * 5
    assert refusal(answers[3])[1] == "one of them is too long."
    assert policy.batches[:2] == [1, 8]


@pytest.mark.parametrize(
    ("error", "status", "fact"),
    [(WorkFailed("the endpoint is gone."), 502, "the endpoint is gone."), (KeyError("private"), 500, "log")],
)
def test_what_breaks_is_a_sentence_and_the_next_request_is_answered(
    error: Exception, status: int, fact: str, service: ServedAgent, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = SlowPolicy()
    policy.go.set()

    async def ask() -> list[httpx2.Response]:
        async with in_process(slow(service, policy)) as client:
            policy.error = error
            broken = await client.post("/act", json=STATE)
            policy.error = None
            chat = await client.post("/v1/chat/completions", json=CHAT)
            return [broken, await client.post("/act", json=STATE), chat, await client.get("/v1/models")]

    broken, after, chat, models = asyncio.run(ask())
    assert broken.status_code == status
    assert fact in refusal(broken)[1]
    written = capsys.readouterr().err
    assert "private" not in written
    assert ("KeyError" in written) == (status == 500)
    assert after.json()["reflection"] is None  # this agent has no reflector
    assert refusal(chat)[0] == 404
    assert models.json()["data"] == []


def test_a_body_that_does_not_arrive_is_not_waited_for(service: ServedAgent) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b'{"observation":'
        await asyncio.sleep(30)

    status, sentence = refusal(request(service, "/act", content=never(), bounds=Bounds(timeout_s=0.1)))
    assert (status, "0.1 s" in sentence) == (408, True)


# ---- other reflectors ------------------------------------------------------------------------------------------------


def copy_with(run: Path, copy: Path, reflector: str, **endpoint: Any) -> Path:
    """The run, as if it had been trained with another reflector."""
    forget_digests(shutil.copytree(run, copy))
    changes = [f"players.reflector.player={reflector}"]
    changes += [f"players.reflector.endpoint.{name}={value}" for name, value in endpoint.items()]
    (copy / "recipe.yaml").write_text(dump_recipe(load_recipe(str(run / "recipe.yaml"), changes)))
    return copy


def test_what_clients_send_to_a_remote_reflector_is_not_kept(
    run: Path, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = lambda chat: "far to go"  # noqa: ARG005
    remote = load_served_agent(copy_with(run, tmp_path / "remote", "remote", base_url=endpoint.url))
    before = sorted(path for path in (tmp_path / "remote").rglob("*"))

    async def ask() -> tuple[httpx2.Response, ...]:
        async with in_process(remote) as client:
            acted = await client.post("/act", json=STATE)
            chat = await client.post("/v1/chat/completions", json=CHAT)
            return acted, chat, await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})

    acted, chat, short = asyncio.run(ask())
    assert acted.json()["reflection"] == "far to go"
    assert chat.json()["choices"][0]["message"]["content"] == "far to go"
    assert chat.json()["usage"] is None
    assert refusal(short)[0] == 400
    assert sorted(path for path in (tmp_path / "remote").rglob("*")) == before


def test_other_kinds_of_agents_are_served_or_refused(run: Path, tmp_path: Path) -> None:
    itself = load_served_agent(copy_with(run, tmp_path / "self", "self"))
    assert itself.agent.reflector is not None
    assert itself.reflector is not None
    with pytest.raises(InvalidInput, match="players.reflector.player"):
        load_served_agent(copy_with(run, tmp_path / "expert", "expert"))
    assert load_served_agent(run, "policy-sft").who == "small (policy after SFT)"


def test_an_address_that_others_reach_without_a_key_is_warned_of(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    said: list[str] = []

    def ready(line: str) -> None:
        said.append(line)
        signal.raise_signal(signal.SIGTERM)

    serve(run, host="0.0.0.0", port=0, ready=ready)
    assert "http://0.0.0.0:" in said[0]
    warning = capsys.readouterr().err
    assert "0.0.0.0" in warning
    assert "--api-key-env" in warning
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_signal_ends_it_once_what_is_under_way_is_answered(run: Path, tmp_path: Path) -> None:
    body = json.dumps(STATE)
    head = f"POST /act HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\n"
    with served(run, tmp_path / "log") as server:
        host, port = server.url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=300) as line:
            line.sendall(f"{head}content-length: {len(body)}\r\n\r\n{body[:5]}".encode())
            time.sleep(0.2)
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            line.sendall(body[5:].encode())
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        assert server.process.wait() == 0
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert server.process.said == server.ready


def test_an_answer_s_body_does_not_wait_until_the_client_has_confirmed_its_headers() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
