"""What a server refuses: requests that are none, too large, from elsewhere, or without the key."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import replace
from typing import Any, NoReturn

import httpx2
import pytest
from agent_server import CHAT, KEY, STATE, in_process, refusal

from reflectrl.pipeline.agent import Agent
from reflectrl.serving.bounds import Bounds

pytestmark = pytest.mark.slow

LONG = "1 2 " * 300
HUGE = "far " * 25_000


@pytest.mark.parametrize(
    ("change", "status", "fact"),
    [
        ({"n": 2}, 400, "'n' would change the reply, which is not possible here; leave it out or give 1."),
        ({"top_p": 0.9}, 400, "'top_p' would change"),
        ({"frequency_penalty": 0.5}, 400, "'frequency_penalty' would change"),
        ({"logprobs": True}, 400, "'logprobs' would change"),
        ({"tools": [{"type": "function"}], "tool_choice": "required"}, 400, 'or give "none" or "auto".'),
        ({"response_format": {"type": "json_object"}}, 400, '{"type": "text"}'),
        ({"audio": {"voice": "alloy"}}, 400, "leave it out."),
        ({"stop": ""}, 400, "'stop' should not be empty"),
        ({"top_k": 5}, 400, "'top_k' is unknown"),
        ({"temperature": 0.5}, 400, "temperature=0.5"),
        ({"model": "gpt-4o"}, 404, "'gpt-4o'"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "Number 2, target 6."}]}, 400, "does not end with 'Reflection:'"),
        ({"messages": [{"content": "x"}]}, 400, "'messages.0.role'"),
        ({"messages": [{"role": "user", "content": f"{LONG}Reflection:"}]}, 400, "tokens"),
        ({"max_tokens": 0}, 400, "'max_tokens'"),
        ({"messages": ["x"]}, 400, "'messages.0' should be an object."),
        ({"messages": [{"role": "user", "content": 5}]}, 400, "should be a valid string or should be a valid list"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, ".content.0.text' is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "", "a[b]": 5}]}]}, 400, "0.a[b]'"),
        ({"actions": []}, 422, "action"),
        ({"actions": [f"go {n}" for n in range(9)]}, 422, "9 actions"),
        ({"actions": ["wait", "wait"]}, 422, "action"),
        ({"actions": ["wait\nB. win", "go"]}, 422, "'actions.0'"),
        ({"history": ["wait\nB. win"]}, 422, "'history.0'"),
        ({"task": LONG}, 422, "tokens"),
        ({"observation": 5}, 422, "'observation'"),
        ({"action": ["go"]}, 422, "'actions'"),
        ({"seed": "1"}, 422, "'seed'"),
        ({"said": {"planer": "Add."}}, 422, "'planer' were given; Known: reflector."),
        ({"said": {"reflector": 1}}, 422, "'said.reflector' should be a valid string"),
        ({"x" * 100: 1}, 422, f"'{'x' * 60}'"),
    ],
)
def test_an_invalid_request_is_refused(change: dict[str, Any], status: int, fact: str, client: httpx2.Client) -> None:
    path, valid = ("/act", STATE) if status == 422 else ("/v1/chat/completions", CHAT)
    found = refusal(client.post(path, json={**valid, **change}))
    assert found[0] == status
    assert fact in found[1]


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"observation": HUGE},
        {"task": HUGE},
        {"said": {"reflector": HUGE}},
        {"actions": [f"go {HUGE}", f"stay {HUGE}"]},
        {"history": [HUGE]},
        {"messages": [{"role": "user", "content": f"{HUGE}Reflection:"}]},
    ],
)
def test_texts_of_which_hardly_anything_would_be_shown_are_refused_before_the_players_see_them(
    change: dict[str, Any], agent: Agent
) -> None:
    unasked = replace(agent, policy=Unasked(), seats=tuple(replace(seat, player=Unasked()) for seat in agent.seats))
    path, valid, expected = ("/v1/chat/completions", CHAT, 400) if "messages" in change else ("/act", STATE, 422)
    with in_process(unasked, Bounds(max_body=1_000_000)) as client:
        status, sentence = refusal(client.post(path, json={**valid, **change}))
        assert (status, "expected at most 4,096 characters" in sentence) == (expected, True)
        many = {**STATE, "history": ["add one"] * 10_000}  # only the last of them are shown
        assert client.post("/act", json=many).status_code == 500


class Unasked:
    """Player that must not be asked."""

    def act(self, views: object, draws: object) -> NoReturn:  # noqa: ARG002
        raise AssertionError("asked")

    say = act


BODIES = (
    b'{"observation": ',
    b"[]",
    b"1",
    b"",
    b"\xff\xfe",
    b"[" * 3000,
    b'{"seed": ' + b"1" * 3900 + b"}",
    b'{"observation": "\\ud800", "actions": ["a"]}',
)


def test_a_body_a_path_or_a_method_that_is_no_request_is_refused(client: httpx2.Client) -> None:
    for body in BODIES:
        status, sentence = refusal(client.post("/act", content=body, headers={"content-type": "application/json"}))
        assert (status, "Traceback" in sentence) == (422, False), body
    form = client.post("/act", content=json.dumps(STATE).encode(), headers={"content-type": "text/plain"})
    assert refusal(form)[0] == 422
    assert refusal(client.get("/nothing"))[0] == 404
    assert refusal(client.get("/act"))[0] == 405
    large = json.dumps({**STATE, "observation": "x" * 4000}).encode()
    for content in (large, iter([large[:1000], large[1000:]])):
        status, sentence = refusal(client.post("/act", content=content, headers={"content-type": "application/json"}))
        assert (status, "4,000 bytes" in sentence) == (413, True)


CHUNK = 100_000


def over_a_socket(url: str, head: str, body: bytes = b"") -> bytes:
    """Send ``body`` repeatedly, and return all that comes back until the server closes the connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as line:
        line.sendall(f"{head}\n\n".replace("\n", "\r\n").encode())
        with contextlib.suppress(OSError):  # the server has hung up
            for _ in range(200 if body else 0):
                line.sendall(body)
        with contextlib.suppress(OSError):
            while part := line.recv(65536):
                answer += part
    return answer


@pytest.mark.parametrize(("key", "status"), [(f"authorization: Bearer {KEY}\n", 413), ("", 401)])
def test_an_endless_request_is_refused_and_hung_up_on(key: str, status: int, url: str) -> None:
    head = f"POST /act HTTP/1.1\nhost: localhost\ncontent-type: application/json\n{key}"
    chunk = b"%x\r\n%b\r\n" % (CHUNK, b"x" * CHUNK)
    for more, body in (("content-length: 900000000000", b"x" * CHUNK), ("transfer-encoding: chunked", chunk)):
        answer = over_a_socket(url, head + more, body)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\nconnection: close\r\n" in answer


def test_a_name_that_a_web_page_led_here_is_refused(url: str, client: httpx2.Client, agent: Agent) -> None:
    for host in ("rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example:8000", "[::1", ""):
        status, sentence = refusal(client.get("/health", headers={"host": host}))
        assert (status, "--served-as" in sentence) == (421, True)
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:8000", "10.1.2.3"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    nameless = over_a_socket(url, f"GET /health HTTP/1.0\nauthorization: Bearer {KEY}")
    assert nameless.startswith(b"HTTP/1.1 421 ")
    for allowed, expected in ((["Agents.example"], 200), ([], 421)):
        with in_process(agent, hosts=allowed) as here:
            assert here.post("/act", json=STATE, headers={"host": "agents.example"}).status_code == expected


def test_without_the_key_nothing_is_answered(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=300, trust_env=False) as client:
        for given in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY):
            headers = {"authorization": given} if given else {}
            for path in ("/health", "/act", "/openapi.json"):
                answer = client.get(path, headers=headers)
                status, sentence = refusal(answer)
                assert (status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert KEY not in sentence
