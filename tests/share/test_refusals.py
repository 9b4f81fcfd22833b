"""What a server refuses: requests that are none, too large, from elsewhere, or without the key."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import replace
from typing import Any, NoReturn

import httpx2
import pytest
from agent_server import KEY, STATE, in_process, refusal

from reflectrl.core import InvalidInput
from reflectrl.pipeline.agent import Agent
from reflectrl.share import Bounds
from reflectrl.share.server import serve

pytestmark = pytest.mark.slow

LONG = "1 2 " * 300
HUGE = "far " * 25_000


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"actions": []}, "action"),
        ({"actions": [f"go {n}" for n in range(9)]}, "9 actions"),
        ({"actions": ["wait", "wait"]}, "action"),
        ({"actions": ["wait\nB. win", "go"]}, "'actions.0'"),
        ({"history": ["wait\nB. win"]}, "'history.0'"),
        ({"task": LONG}, "tokens"),
        ({"observation": 5}, "'observation'"),
        ({"action": ["go"]}, "'actions'"),
        ({"seed": "1"}, "'seed'"),
        ({"said": {"planer": "Add."}}, "'planer' were given; known: reflector."),
        ({"said": {"reflector": 1}}, "'said.reflector' should be a valid string"),
        ({"x" * 100: 1}, f"'{'x' * 60}'"),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "'c' is unknown; known: actions, "),
        ({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}, "; and 2 more."),
    ],
)
def test_an_invalid_request_is_refused(change: dict[str, Any], fact: str, client: httpx2.Client) -> None:
    status, sentence = refusal(client.post("/act", json={**STATE, **change}))
    assert status == 422
    assert fact in sentence


# ---- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"observation": HUGE},
        {"task": HUGE},
        {"said": {"reflector": HUGE}},
        {"actions": [f"go {HUGE}", f"stay {HUGE}"]},
        {"history": [HUGE]},
    ],
)
def test_texts_that_would_hardly_be_shown_are_refused(change: dict[str, Any], agent: Agent) -> None:
    unasked = replace(agent, policy=Unasked(), seats=tuple(replace(seat, player=Unasked()) for seat in agent.seats))
    with in_process(unasked, Bounds(max_body=1_000_000)) as client:
        status, sentence = refusal(client.post("/act", json={**STATE, **change}))
        assert (status, "expected at most 4,096 characters" in sentence) == (422, True)
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


def test_what_is_no_request_is_refused(client: httpx2.Client) -> None:
    for body in BODIES:
        answer = client.post("/act", content=body, headers={"content-type": "application/json"})
        assert answer.status_code in (400, 422), body  # 400 is FastAPI's answer to what json cannot decode at all
        assert "Traceback" not in answer.json()["detail"]
    form = client.post("/act", content=json.dumps(STATE).encode(), headers={"content-type": "text/plain"})
    assert refusal(form)[0] == 422
    assert client.get("/nothing").status_code == 404
    assert client.get("/act").status_code == 405
    assert client.post("/v1/completions", json=STATE).status_code == 404
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


def test_another_web_page_is_refused_before_anything_is_computed(url: str, client: httpx2.Client) -> None:
    for page in ("https://page.example", "http://127.0.0.1:1", "null"):
        status, sentence = refusal(client.post("/act", json=STATE, headers={"origin": page}))
        assert (status, page in sentence) == (403, True)
    assert client.post("/act", json=STATE, headers={"origin": url}).status_code == 200


def test_without_the_key_nothing_is_answered(url: str) -> None:
    with httpx2.Client(base_url=url, timeout=300, trust_env=False) as client:
        for given in ("", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY):
            headers = {"authorization": given} if given else {}
            for path in ("/health", "/act", "/openapi.json"):
                answer = client.get(path, headers=headers)
                status, sentence = refusal(answer)
                assert (status, answer.headers["www-authenticate"]) == (401, "Bearer")
                assert KEY not in sentence


def test_no_origin_stands_for_every_page(tmp_path):
    with pytest.raises(InvalidInput, match="expected the exact origin of a page"):
        serve(tmp_path, origins=["*"])
