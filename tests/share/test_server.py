"""``reflectrl serve`` as clients use it: a real process and real HTTP."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from agent_server import KEY, STATE, in_process, refusal, while_serving
from fastapi.testclient import TestClient
from faulty import wait_until
from records import chose
from run_folders import forget_digests
from safetensors.torch import load_file, save_file
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import dump_recipe, load_recipe
from reflectrl.core import Decision, InvalidInput, WorkFailed
from reflectrl.core.addresses import listen
from reflectrl.endpoint.journal import RejectedReply
from reflectrl.endpoint.replies import Refused
from reflectrl.envs.number_line import NumberLine
from reflectrl.pipeline.agent import Agent, load_agent
from reflectrl.prompts.views import MenuView
from reflectrl.rollout import Episode, rollout
from reflectrl.share import Bounds
from reflectrl.share.export import export_run
from reflectrl.share.server import load_served_agent, serve

pytestmark = pytest.mark.slow


# ---- both players ----------------------------------------------------------------------------------------------------


def test_the_server_tells_what_a_policy_wrote(json_policy: Path) -> None:
    with in_process(load_served_agent(json_policy)) as client:
        replies = [client.post("/act", json=STATE).json() for _ in range(20)]
    assert {(reply["legal"], *reply["probabilities"]) for reply in replies} == {(False,)}  # two tokens are not JSON
    assert len({reply["thought"] for reply in replies}) == 1
    assert len({reply["action"] for reply in replies}) == 2


@pytest.mark.numerical
@pytest.mark.parametrize("greedy", [True, False])
def test_an_episode_over_http_is_that_of_a_rollout(run: Path, greedy: bool) -> None:
    agent, env, paths = load_agent(run, greedy=greedy), NumberLine(size=8), set()
    task = env.tasks("test")[1]
    with in_process(load_served_agent(run, greedy=greedy)) as client:
        for seed in range(3, 9):
            episode = [Episode(task, seed)]
            (played,) = rollout([env], episode, policy=agent.policy, seats=agent.seats, layout=agent.layout)
            env.reset(seed=seed, options={"task": task})
            for number, turn in enumerate(played.turns):
                seen, past = env.observation, played.actions[:number]
                state = {"observation": seen.text, "actions": seen.actions, "task": seen.task, "history": past}
                reply = client.post("/act", json={**state, "seed": seed}).json()
                assert (reply["action"], reply["said"]) == (played.actions[number], {"reflector": turn.reflection})
                assert reply["index"] == turn.decision.choice.index
                assert (reply["legal"], reply["thought"]) == (True, None)
                assert reply["probabilities"] == pytest.approx(turn.decision.choice.probabilities, abs=1e-5)
                assert reply["logprob"] == pytest.approx(turn.decision.logprob, abs=1e-4)
                assert reply["entropy"] == pytest.approx(turn.decision.entropy, abs=1e-4)
                env.step(reply["action"])
            paths.add(played.actions)
        chosen = {client.post("/act", json=STATE).json()["index"] for _ in range(40)}
    assert (len(paths) == 1, len(chosen)) == ((True, 1) if greedy else (False, 2))  # without a seed, each request draws


@pytest.mark.numerical
def test_listed_actions_keep_their_labels_and_probabilities_the_order_of_the_request(agent: Agent) -> None:
    listing = replace(agent, layout=replace(agent.layout, menu="first"))
    asked = {**STATE, "common": STATE["actions"]}
    with in_process(listing) as client:
        one, other = (client.post("/act", json={**asked, "actions": STATE["actions"][::way]}).json() for way in (1, -1))
    assert (one["action"], one["index"]) == (other["action"], 1 - other["index"])
    assert one["probabilities"] == pytest.approx(other["probabilities"][::-1], abs=1e-5)
    assert one["probabilities"] != pytest.approx([0.5, 0.5], abs=1e-3)
    assert one["action"] == STATE["actions"][one["index"]]


def test_a_reflection_that_is_given_is_used_instead(client: httpx2.Client) -> None:
    said = ({"reflector": "The target is lower."}, {"reflector": "The target is higher."})
    lower, higher = (client.post("/act", json={**STATE, "said": words}).json() for words in said)
    assert (lower["said"], higher["said"]) == said
    assert lower["probabilities"] != higher["probabilities"]
    own = [client.post("/act", json={**STATE, **none}).json() for none in ({}, {"said": {}})]
    assert (own[0]["said"], own[0]["action"]) == (own[1]["said"], own[1]["action"])
    # the second reuses the first one's prefix: in another batch, it may be rounded differently
    assert own[0]["probabilities"] == pytest.approx(own[1]["probabilities"], abs=1e-5)


@pytest.mark.numerical
def test_requests_at_once_are_answered_as_one_by_one(client: httpx2.Client) -> None:
    states = [{**STATE, "observation": f"Number {n % 8}, target {(n * 5 + 1) % 8}."} for n in range(16)]
    alone = [client.post("/act", json=state).json() for state in states]
    with ThreadPoolExecutor(16) as crowd:
        together = list(crowd.map(lambda state: client.post("/act", json=state).json(), states))
    for one, other in zip(alone, together, strict=True):
        assert (one["said"], one["action"]) == (other["said"], other["action"])
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)


def test_hundreds_of_requests_at_once_are_all_answered(url: str) -> None:
    body = json.dumps({**STATE, "seed": 1}).encode()
    head = f"POST /act HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    request = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    async def ask(together: asyncio.Barrier) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        try:
            await together.wait()
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()

    async def ask_all() -> list[bytes]:
        together = asyncio.Barrier(700)
        return await asyncio.gather(*(ask(together) for _ in range(together.parties)))

    assert {answer[:13] for answer in asyncio.run(ask_all())} == {b"HTTP/1.1 200 "}


def test_the_server_describes_itself(server: str, client: httpx2.Client) -> None:
    assert "small (policy after RLFT) with the most probable actions on http://127.0.0.1:" in server
    health = client.get("/health").json()
    assert (health["environment"], health["policy"], health["reflector"]) == ("number_line", "policy", "local")
    assert (health["agent"], health["greedy"], health["waiting"]) == ("small (policy after RLFT)", True, 0)
    chat = {"/v1/chat/completions", "/v1/models"}
    assert set(client.get("/openapi.json").json()["paths"]) == {"/act", "/health", *chat}
    assert client.get("/redoc").status_code == 404


# ---- time and failures -----------------------------------------------------------------------------------------------


class SlowPolicy:
    """Policy that acts once ``go`` is set, and records the sizes of its batches."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.busy = threading.Event()
        self.batches: list[int] = []
        self.error: Exception | None = None
        self.too_long: Exception = InvalidInput("one of them is too long.")

    def act(self, views: Sequence[MenuView], draws: Sequence[float]) -> list[Decision]:  # noqa: ARG002
        self.busy.set()
        self.go.wait(10)
        self.batches.append(len(views))
        if self.error is not None:
            raise self.error
        if any("long" in view.prompt.text for view in views):
            raise self.too_long
        return [chose(0, view.menu.actions[0], 0.0, 0.0, (1.0, 0.0)) for view in views]


def slow(agent: Agent, policy: SlowPolicy) -> Agent:
    """Return an agent with this policy and without a reflector."""
    return replace(agent, policy=policy, seats=())


def act(client: TestClient, observation: str = "short") -> httpx2.Response:
    return client.post("/act", json={**STATE, "observation": observation})


@pytest.mark.parametrize(("kind", "status"), [(InvalidInput, 422), (RejectedReply, 502), (Refused, 502)])
def test_waiting_requests_share_a_batch_and_fail_alone(kind: type[Exception], status: int, agent: Agent) -> None:
    policy = SlowPolicy()
    policy.too_long = kind("one of them is too long.")
    with in_process(slow(agent, policy), Bounds(max_waiting=9)) as client, ThreadPoolExecutor(9) as crowd:
        asked = [crowd.submit(act, client)]
        policy.busy.wait()
        asked += [crowd.submit(act, client, "long" if number == 3 else "short") for number in range(1, 9)]
        wait_until(lambda: client.get("/health").json()["waiting"] == 9)
        late = act(client)
        policy.go.set()
        answers = [*(each.result() for each in asked), act(client)]
    assert (refusal(late)[0], late.headers["retry-after"]) == (503, "1")
    assert [answer.status_code for answer in answers] == [200] * 3 + [status] + [200] * 6
    assert refusal(answers[3])[1] == "one of them is too long."
    assert policy.batches[:2] == [1, 8]


def test_a_request_that_takes_too_long_is_refused_and_not_played_later(agent: Agent) -> None:
    policy = SlowPolicy()
    with in_process(slow(agent, policy), Bounds(timeout_s=0.3)) as client, ThreadPoolExecutor(5) as crowd:
        late = [each.result() for each in [crowd.submit(act, client) for _ in range(5)]]
        policy.go.set()
        last = act(client)
    assert [refusal(answer)[0] for answer in late] == [504] * 5
    assert last.status_code == 200
    assert sum(policy.batches[1:]) == 1  # after the batch that timed out, only the last request was played


@pytest.mark.parametrize(
    ("error", "status", "fact"),
    [(WorkFailed("the endpoint is gone."), 502, "the endpoint is gone."), (KeyError("private"), 500, "log")],
)
def test_a_failure_is_a_sentence_and_the_next_request_is_answered(
    error: Exception, status: int, fact: str, agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = SlowPolicy()
    policy.go.set()
    policy.error = error
    with in_process(slow(agent, policy)) as client:
        broken = refusal(act(client))
        policy.error = None
        assert act(client).json()["said"] == {}  # this agent has no reflector
    assert broken[0] == status
    assert fact in broken[1]
    written = capsys.readouterr().err
    assert "private" not in written
    assert ("KeyError" in written) == (status == 500)


# ---- models that are broken ------------------------------------------------------------------------------------------


LAST_NORM = "transformer.ln_f.weight"


def with_weights(run: Path, copy: Path, player: str, value: float) -> Path:
    """Copy the run and set the weights of the last norm of a player."""
    forget_digests(shutil.copytree(run, copy))
    file = copy / player / "model.safetensors"
    weights = load_file(file)
    weights[LAST_NORM].fill_(value)
    save_file(weights, file, metadata={"format": "pt"})
    return copy


@pytest.mark.parametrize("player", ["policy", "reflector"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_player_with_weights_that_are_no_numbers_is_not_loaded(
    player: str, value: float, run: Path, tmp_path: Path
) -> None:
    there = with_weights(run, tmp_path / "run", player, value)
    with pytest.raises(InvalidInput, match=f"{player}' has weights that are not finite, in {LAST_NORM}"):
        load_served_agent(there)


def test_probabilities_that_are_no_numbers_are_an_error_and_not_an_answer(run: Path, tmp_path: Path) -> None:
    there = with_weights(run, tmp_path / "run", "policy", 3e38)
    with in_process(load_served_agent(there)) as client:
        status, sentence = refusal(act(client))
    assert (status, "probabilities are not finite" in sentence) == (500, True)


# ---- other players ---------------------------------------------------------------------------------------------------


def copy_with(run: Path, copy: Path, *changes: str) -> Path:
    """Copy the run as if it had been trained with a recipe with these changes."""
    forget_digests(shutil.copytree(run, copy))
    (copy / "recipe.yaml").write_text(dump_recipe(load_recipe(str(run / "recipe.yaml"), changes)))
    return copy


def plan_or_reflect(chat: Chat) -> str:
    return "Walk up." if "You plan" in chat[0]["content"] else "far to go"


def test_clients_words_are_not_kept_and_a_plan_can_be_sent_back(
    run: Path, endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    endpoint.reply = plan_or_reflect
    at = f"endpoint: {{base_url: {endpoint.url}}}"
    changes = [f"players.{role}={{player: remote, {at}}}" for role in ("reflector", "planner")]
    there = copy_with(run, tmp_path / "remote", *changes)
    before = written(tmp_path)
    with in_process(load_served_agent(there)) as client:
        first = act(client).json()
        assert first["said"] == {"planner": "Walk up.", "reflector": "far to go"}
        assert len(endpoint.requests) == 2
        plan = {"planner": first["said"]["planner"]}
        later = client.post("/act", json={**STATE, "observation": "Number 3, target 6.", "said": plan}).json()
        assert later["said"] == first["said"]
        assert len(endpoint.requests) == 3  # only the reflector was asked again
        assert "Plan: Walk up." in endpoint.requests[-1].chat[1]["content"]
    assert written(tmp_path) == before


def written(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_refused_prompts_are_answered_without_words(run: Path, endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.faults.extend(["empty"] * 4)
    endpoint.reply = lambda _: "far to go"
    settings = f"{{base_url: {endpoint.url}, max_attempts: 1, max_rejected: 1}}"
    there = copy_with(run, tmp_path / "remote", f"players.reflector={{player: remote, endpoint: {settings}}}")
    with in_process(load_served_agent(there)) as client:
        answers = [act(client, f"Number {number}, target 6.") for number in range(4)]
        assert act(client, "Number 0, target 6.").json()["said"] == {"reflector": "far to go"}  # it has recovered
    assert [answer.json()["said"] for answer in answers] == [{"reflector": ""}] * 4


def test_other_kinds_of_agents_are_served_or_refused(run: Path, tmp_path: Path) -> None:
    with in_process(load_served_agent(copy_with(run, tmp_path / "self", "players.reflector.player=self"))) as client:
        assert set(act(client).json()["said"]) == {"reflector"}
    for role in ("reflector", "planner"):
        there = copy_with(run, tmp_path / role, f"players.{role}={{player: expert}}")
        with pytest.raises(InvalidInput, match=f"players.{role}.player"):
            load_served_agent(there)
    assert load_served_agent(run, "policy-sft").who == "small (policy after SFT)"
    assert load_served_agent(export_run(run, tmp_path / "agent")).who == "agent (exported agent)"


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_signal_ends_an_open_server_once_its_requests_are_answered(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = json.dumps(STATE)
    head = f"POST /act HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    said: list[str] = []
    answers: list[bytes] = []

    def ask(*, whole: bool) -> None:
        with socket.create_connection(("127.0.0.1", int(said[0].rpartition(":")[2])), timeout=300) as line:
            line.sendall(f"{head}\r\n\r\n{body[:5]}".encode())
            if whole:
                time.sleep(0.2)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                time.sleep(0.2)
                line.sendall(body[5:].encode())
            answers.append(b"".join(iter(lambda: line.recv(65536), b"")))

    def talk() -> None:
        with socket.create_connection(("127.0.0.1", int(said[0].rpartition(":")[2])), timeout=60) as idle:
            idle.sendall(b"POST /act HTT")
            ask(whole=False)
            ask(whole=True)
            answers.append(idle.recv(100))  # nothing: the end hangs up

    clients = threading.Thread(target=talk)

    def ready(line: str) -> None:
        said.append(line)
        clients.start()

    serve(run, host="0.0.0.0", port=0, bounds=Bounds(timeout_s=2), ready=ready)
    clients.join()
    assert [answer[:13] for answer in answers] == [b"HTTP/1.1 408 ", b"HTTP/1.1 200 ", b""]
    assert "http://0.0.0.0:" in said[0]
    warning = capsys.readouterr().err
    assert "0.0.0.0" in warning
    assert "--api-key-env" in warning
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_one_connection_too_many_is_refused(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    health = f"GET /health HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
    chunked = f"POST /act HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ntransfer-encoding: chunked\r\n"

    def talk(port: int) -> None:
        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), timeout=30)

        with connect() as first:
            with connect(), connect() as late:
                late.sendall(health)
                assert late.recv(13) == b"HTTP/1.1 503 "
            wait_until(lambda: answered(first))
        with connect() as line:
            line.sendall(f"{chunked}\r\nnonsense\r\n".encode())
            assert line.recv(13) == b"HTTP/1.1 400 "
            assert b"HTTP/1.1" not in b"".join(iter(lambda: line.recv(65536), b""))  # one reply, then the end

    def answered(line: socket.socket) -> bool:
        line.sendall(health)
        return line.recv(65536).startswith(b"HTTP/1.1 200 ")

    while_serving(run, talk, Bounds(max_waiting=1, max_idle=2), KEY)
    assert "Invalid HTTP request" in caplog.text
    assert "Traceback" not in caplog.text


def test_answers_do_not_wait_for_delayed_acks() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        connection, _ = listener.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
