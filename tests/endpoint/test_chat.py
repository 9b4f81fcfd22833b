from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty import wait_until
from interruptions import DEAR, ask_dearly, ask_six, questions
from scripted_endpoint import ScriptedEndpoint, dearest, replies_in
from warm_processes import WarmProcess

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.messages import BadReply, Messages
from reflectrl.endpoint.account import Account, Tokens
from reflectrl.endpoint.api import MAX_REPLY_BYTES
from reflectrl.endpoint.client import CUT, ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import REJECTED, REPLIES, Journal, RejectedReply

KEY = "sk-secret-123"


def question(text: str) -> Messages:
    return [{"role": "user", "content": text}]


def ask(
    endpoint: Endpoint,
    *texts: str,
    read: Callable[[str], str] = str,
    calls: Path | None = None,
) -> list[str]:
    client = ChatClient(endpoint, Journal(calls))
    return [reply.value for reply in client.ask_many([question(text) for text in texts], [read] * len(texts))]


def number(words: str) -> str:
    if not words.isdigit():
        raise BadReply("Answer with a number.")
    return words


def asked(endpoint: ScriptedEndpoint) -> list[str]:
    return [request.chat[-1]["content"] for request in endpoint.requests]


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls"


# ---- requests -------------------------------------------------------------------------------------------------------


def test_equal_chats_are_asked_once(endpoint: ScriptedEndpoint) -> None:
    endpoint.latency_s = 0.05
    for temperature, paid in ((0.0, (5, 0, 5, 0, 0)), (0.7, (5, 0, 5, 5, 0))):
        client, chats = ChatClient(endpoint.at(temperature=temperature)), [question(text) for text in "aabab"]
        replies = client.ask_many(chats, [str] * 5, draws=["1", "1", "1", "2", "1"])
        assert [(reply.value, reply.tokens) for reply in replies] == [("fine", tokens) for tokens in paid]
        assert (client.usage.calls, client.usage.kept) == (sum(paid) // 5, paid.count(0))


def test_own_servers_and_azure_are_asked_in_their_own_ways(
    endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(endpoint.at(max_tokens=33, temperature=0.5, model="mine"), "hello")
    body = endpoint.requests[0].body
    assert (body["max_tokens"], body["temperature"], body["model"]) == (33, 0.5, "mine")
    assert "max_completion_tokens" not in body
    monkeypatch.setenv("OPENAI_API_KEY", "azure-key")
    ask(endpoint.at(base_url=endpoint.root, azure_api_version="2024-06-01", model="my-gpt", max_tokens=33), "hello")
    azure = endpoint.requests[1]
    assert azure.path == "/openai/deployments/my-gpt/chat/completions?api-version=2024-06-01"
    assert (azure.headers["api-key"], azure.body["max_completion_tokens"]) == ("azure-key", 33)


# ---- faults ---------------------------------------------------------------------------------------------------------

BROKEN = ("html", "bad-utf8", "deep", "no-choices", "wrong-type", "endless", "gzip", "refusal")
"""Faults that are unusable replies of a working endpoint."""
DOWN = ("500", "cut", "drip:9")
"""Faults of an endpoint that is down."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*BROKEN, *DOWN])
def test_a_fault_is_retried_and_ends_in_an_error_of_its_kind(
    endpoint: ScriptedEndpoint, calls: Path, fault: str
) -> None:
    there = endpoint.at(timeout_s=0.5 if fault == "drip:9" else 60.0, max_attempts=2)
    client = ChatClient(there, Journal(calls))
    endpoint.faults.append(fault)
    assert client.ask_many([question("hello")], [str])[0].value == "fine"
    assert (client.usage.calls, client.usage.retries) == (2, 1)
    endpoint.faults.extend([fault] * 2)
    with pytest.raises(RejectedReply if fault in BROKEN else WorkFailed, match=f"{endpoint.url}.* 2 ") as caught:
        client.ask_many([question("again")], [str])
    assert isinstance(caught.value, RejectedReply) == (calls / REJECTED).exists() == (fault in BROKEN)
    assert len(endpoint.requests) == 4
    assert endpoint.flooded < 3 * 8 * MAX_REPLY_BYTES  # besides what sockets hold
    if fault in BROKEN:
        [line] = (calls / REJECTED).read_text().splitlines()
        assert json.loads(line)["chat"] == question("again")


@pytest.mark.parametrize(
    ("fault", "fact"),
    [
        *(("401", "OPENAI_API_KEY"), ("404", "endpoint.model"), ("400", "400")),
        *(("quota", "quota"), ("429:600", "600")),
    ],
)
def test_a_permanent_fault_stops_at_once(endpoint: ScriptedEndpoint, fault: str, fact: str) -> None:
    endpoint.faults.append(fault)
    with pytest.raises(WorkFailed, match=fact):
        ask(endpoint.at(), "hello")
    assert len(endpoint.requests) == 1


def test_a_pause_that_the_server_asks_for_holds_for_all_calls(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["429:0.5", "slow:0.1"])
    assert ask(endpoint.at(concurrency=2), *"abcdef") == ["fine"] * 6
    first, _, *later = [request.time for request in endpoint.requests]  # two are under way when it asks
    assert all(sent - first > 0.45 for sent in later)
    assert len(later) == 5


@pytest.mark.parametrize("given", ["0", "-3", "soon", "nan", "Mon, 01 Jan 99999 00:00:00 GMT"])
def test_a_pause_that_is_none_is_not_kept(endpoint: ScriptedEndpoint, given: str) -> None:
    endpoint.faults.append(f"503:{given}")
    assert ask(endpoint.at(), "hello") == ["fine"]


def test_a_redirect_is_not_followed_and_says_where_it_leads(endpoint: ScriptedEndpoint) -> None:
    with ScriptedEndpoint() as other:
        for url in (f"{other.url}/chat/completions", f"http://me:{KEY}@{other.root[7:]}/x?key={KEY}"):
            endpoint.faults.append(f"redirect:{url}")
            with pytest.raises(WorkFailed, match=r"307.* 127\.0\.0\.1, .*base_url") as caught:
                ask(endpoint.at(), "hello")
            assert KEY not in str(caught.value)
        assert (len(endpoint.requests), other.requests) == (2, [])


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HTTPS_PROXY", f"socks9://me:{KEY}@127.0.0.1:1"),
        ("https_proxy", "http://127.0.0.1:port"),
        ("all_proxy", "http://"),
        ("SSL_CERT_FILE", __file__),
    ],
)
def test_connections_that_the_environment_makes_impossible_are_refused_before_work(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInput, match=variable) as caught:
        ChatClient(Endpoint(base_url="https://127.0.0.1:1/v1"))
    assert KEY not in str(caught.value)


def test_a_server_or_a_proxy_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for proxy, fact in (("", "http://127.0.0.1:1/v1"), ("http://127.0.0.1:1", "HTTP_PROXY")):
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("NO_PROXY", "")
        with pytest.raises(WorkFailed, match=fact):
            ask(Endpoint(base_url="http://127.0.0.1:1/v1", max_attempts=1), "hello")


def test_a_silent_server_is_announced(endpoint: ScriptedEndpoint) -> None:
    lines: list[str] = []
    two = threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            two.set()

    endpoint.reply = lambda _: str(two.wait(30))
    client = ChatClient(endpoint.at(notice_s=0.02), tell=tell)
    assert client.ask_many([question("a")], [str])[0].value == "True"
    for line, seconds in zip(lines, ("(0.02 s)", "(0.04 s)"), strict=False):
        assert endpoint.url in line
        assert seconds in line
    two.clear()
    lines.clear()
    client.ask_many([question("b")], [str])
    assert "(0.02 s)" in lines[0]


@pytest.mark.slow
def test_a_server_of_ones_own_that_loads_its_model_is_waited_for(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["503"] * 9)
    assert ask(endpoint.at(max_attempts=2), "hello") == ["fine"]


# ---- replies --------------------------------------------------------------------------------------------------------


def test_a_truncated_reply_is_asked_again_and_in_the_end_rejected(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.faults.append("cut-off")
    for sent, cut in ((2, 1), (2, 0)):  # the second client reads the journal
        client = ChatClient(endpoint.at(max_tokens=50), Journal(calls))
        assert [reply.value for reply in client.ask_many([question("hello")], [str])] == ["fine"]
        assert (len(endpoint.requests), client.usage.cut) == (sent, cut)
    first, answer, complaint = endpoint.requests[1].chat
    assert (first["content"], answer["content"], complaint["content"]) == ("hello", "It was all going very", CUT)
    endpoint.faults.extend(["cut-off"] * 4)
    with pytest.raises(RejectedReply, match="max_tokens=50"):
        ask(endpoint.at(max_tokens=50), "again", calls=calls)


def test_an_invalid_reply_is_asked_again_and_then_rejected(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.reply = lambda chat: "7" if len(chat) == 3 else "seven"
    client = ChatClient(endpoint.at())
    assert client.ask_many([question("how many?")], [number])[0].value == "7"
    assert (client.usage.calls, client.usage.retries) == (2, 1)
    assert endpoint.requests[1].chat == [
        *question("how many?"),
        {"role": "assistant", "content": "seven"},
        *question("Answer with a number."),
    ]
    endpoint.requests.clear()
    endpoint.reply = lambda chat: f"many{len(chat)}"
    for _ in range(2):
        with pytest.raises(RejectedReply, match="'many7'.*Answer with a number"):
            ask(endpoint.at(), "how many?", "how many?", read=number, calls=calls)
        assert len(endpoint.requests) == 4
    [line] = (calls / REJECTED).read_text().splitlines()
    assert [turn["content"] for turn in json.loads(line)["chat"]][:3] == ["how many?", "many1", "Answer with a number."]
    assert "'many7'" in json.loads(line)["reason"]
    (calls / REJECTED).write_text("")
    endpoint.reply = lambda chat: "7"  # noqa: ARG005
    assert ask(endpoint.at(), "how many?", read=number, calls=calls) == ["7"]


def test_chats_that_are_too_long_are_set_aside_up_to_a_limit(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.faults.extend(["too-long", "none", "too-long", "too-long"])
    client = ChatClient(endpoint.at(concurrency=1, max_rejected=1), Journal(calls))
    replies = client.ask_many([question(text) for text in "ab"], [str] * 2, instead="nothing")
    assert [reply.value for reply in replies] == ["nothing", "fine"]
    with pytest.raises(WorkFailed, match=r"max_rejected=1 .*rejected\.jsonl") as stop:
        client.ask_many([question(text) for text in "cdef"], [str] * 4, instead="")
    assert not isinstance(stop.value, RejectedReply)
    assert asked(endpoint)[:3] == ["a", "b", "c"]
    assert "f" not in asked(endpoint)  # d and e may have been sent already


# ---- journal and stops ----------------------------------------------------------------------------------------------


def test_a_restart_asks_nothing_twice(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.reply = lambda chat: f"you said {chat[-1]['content']}"
    texts = [str(number) for number in range(10)]

    def read(words: str) -> str:
        assert words in [reply["text"] for reply in replies_in(calls)]
        return words

    first = ask(endpoint.at(), *texts, read=read, calls=calls)
    assert first == [f"you said {text}" for text in texts]
    kept = replies_in(calls)
    (calls / REPLIES).write_bytes((calls / REPLIES).read_bytes()[:-9])  # killed in the middle of a line
    assert ask(endpoint.at(concurrency=3), *texts, calls=calls) == first
    assert len(endpoint.requests) == 11
    assert replies_in(calls) == kept


def test_a_request_is_journalled_before_it_is_sent(endpoint: ScriptedEndpoint, calls: Path) -> None:
    seen: list[int] = []

    def reply(chat: Any) -> str:  # noqa: ARG001
        seen.append((calls / REPLIES).read_text().count('"sent": true'))
        return "fine"

    endpoint.reply = reply
    endpoint.faults.extend(["500", "429", "none"])
    assert ask(endpoint.at(), "hello", calls=calls) == ["fine"]
    assert seen == [1, 2, 3]
    assert [tokens for tokens, _ in Journal(calls).paid] == [Tokens(), Tokens(), Tokens(7, 5)]


@pytest.mark.parametrize("fault", ["slow:9", "cut", "reset", "truncated"])
def test_a_lost_reply_counts_as_what_it_may_cost(endpoint: ScriptedEndpoint, calls: Path, fault: str) -> None:
    endpoint.faults.append(fault)
    account, there = Account(), replace(DEAR, base_url=endpoint.url, timeout_s=0.5, backoff_s=0.01)
    client = ChatClient(there, Journal(calls), account)
    client.ask_many(questions(1), [str])
    lost = Tokens(27, 200)
    assert (client.usage.calls, client.usage.unanswered, client.usage.cost) == (2, 1, pytest.approx(account.spent))
    assert Journal(calls).paid == [(lost, False), (Tokens(7, 5), False)]
    assert account.spent == pytest.approx(lost.cost(DEAR.price) + Tokens(7, 5).cost(DEAR.price))


def test_requests_that_reach_no_server_cost_nothing(calls: Path) -> None:
    account = Account()
    client = ChatClient(replace(DEAR, base_url="http://127.0.0.1:1/v1", max_attempts=2), Journal(calls), account)
    with pytest.raises(WorkFailed, match="cannot be reached"):
        client.ask_many(questions(1), [str])
    assert (account.spent, client.usage.unanswered, client.usage.calls) == (0.0, 0, 2)
    assert sum(tokens.cost(DEAR.price) for tokens, _ in Journal(calls).paid) == 0.0


@pytest.mark.slow
def test_requests_of_a_killed_process_count_as_spent(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.usage, endpoint.latency_s = dearest, 0.5
    one = Tokens(27, 200).cost(DEAR.price)
    limit = 28.5 * one
    for kill in range(2):
        process = WarmProcess(calls.with_name("log"), ask_dearly, endpoint.url, calls, 40, limit)
        wait_until(lambda number=12 * (kill + 1): len(endpoint.requests) >= number)  # type: ignore[misc]
        process.kill()
    wait_until(lambda: endpoint.active == 0)  # the server ends, and charges, what nobody waits for
    endpoint.latency_s = 0.0
    with pytest.raises(WorkFailed, match="--max-cost"):
        ask_dearly(endpoint.url, calls, 40, limit)
    bill = sum(tokens.cost(DEAR.price) for tokens in endpoint.charged)
    counted = sum(tokens.cost(DEAR.price) for tokens, _ in Journal(calls).paid)
    assert len(endpoint.charged) > len(replies_in(calls))  # some are paid for in vain
    assert bill <= counted + 1e-9
    assert counted <= limit
    assert ask_dearly(endpoint.url, calls, 40).spent >= sum(tokens.cost(DEAR.price) for tokens in endpoint.charged)
    assert len(replies_in(calls)) == 40


def test_a_reply_under_way_when_another_call_fails_is_kept(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.faults.extend(["slow:0.3", "401"])
    with pytest.raises(WorkFailed, match="401"):
        ask(endpoint.at(concurrency=2), *"abcdef", calls=calls)
    sent = len(endpoint.requests)
    assert sent <= 3  # the third may have been sent already
    assert [reply["text"] for reply in replies_in(calls)].count("fine") == sent - 1


def test_a_reply_under_way_when_the_client_is_left_is_kept(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.latency_s = 0.3

    async def leave_early() -> None:
        async with ChatClient(endpoint.at(), Journal(calls)) as client:
            waiting = asyncio.create_task(client.ask(question("hello"), str))
            await asyncio.sleep(0.15)
            waiting.cancel()

    asyncio.run(leave_early())
    assert ask(endpoint.at(), "hello", calls=calls) == ["fine"]
    assert len(endpoint.requests) == 1


def test_errors_of_replies_whose_callers_were_cancelled_are_not_printed(
    endpoint: ScriptedEndpoint, calls: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = ChatClient(endpoint.at(concurrency=2), Journal(calls))
    calls.write_text("")  # a file in place of its folder, so that no reply can be stored
    endpoint.faults.extend(["none", "slow:0.1"])

    async def leave_slowly() -> None:
        try:
            await client.ask(question("b"), str)
        finally:
            await asyncio.sleep(0.3)  # cancelled, and its reply arrives before the client's context is left

    async def ask_both() -> None:
        async with client, asyncio.TaskGroup() as group:
            group.create_task(client.ask(question("a"), str))
            group.create_task(leave_slowly())

    with pytest.raises(ExceptionGroup):
        asyncio.run(ask_both())
    gc.collect()
    assert caplog.text == ""


def test_a_client_may_be_deleted_while_python_starts_a_thread(endpoint: ScriptedEndpoint) -> None:
    client = ChatClient(endpoint.at())
    client.ask_many([question("a")], [str])
    with threading._shutdown_locks_lock:  # type: ignore[attr-defined]  # another thread cannot start meanwhile
        del client
        gc.collect()
    again = ChatClient(endpoint.at())
    assert again.ask_many([question("b")], [str])[0].value == "fine"


def test_a_client_that_is_left_does_not_wait_for_a_repetition(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["401", "500"])
    endpoint.latency_s = 0.1
    with pytest.raises(WorkFailed, match="401"):
        ask(endpoint.at(backoff_s=5.0), "a", "b")
    assert len(endpoint.requests) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("sign", "kept"), [(signal.SIGINT, 4), (signal.SIGKILL, 2)])
def test_a_stopped_process_keeps_what_it_paid_for(
    endpoint: ScriptedEndpoint, calls: Path, sign: signal.Signals, kept: int
) -> None:
    endpoint.faults.extend(["none", "none", "slow:0.6", "slow:0.6"])
    process = WarmProcess(calls.with_name("log"), ask_six, endpoint.url, calls)
    wait_until(lambda: len(endpoint.requests) >= 4)
    process.send_signal(sign)
    assert process.wait(60) != 0
    assert ("KeyboardInterrupt" in process.said) == (sign == signal.SIGINT)
    assert len(replies_in(calls)) == kept
    assert ask(endpoint.at(), *"abcdef", calls=calls) == ["fine"] * 6
    assert len(endpoint.requests) == 4 + 6 - kept


@pytest.mark.slow
def test_sigterm_inside_of_a_task_ends_the_process_without_a_complaint(endpoint: ScriptedEndpoint, calls: Path) -> None:
    process = WarmProcess(calls.with_name("log"), ask_six, endpoint.url, calls, [signal.SIGTERM])
    assert (process.wait(60), process.said) == (143, "")
    assert len(replies_in(calls)) == len(endpoint.requests)


# ---- secrets and odd characters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["echo-key", "echo-key:500", "none"])
def test_the_key_is_sent_and_shown_nowhere_even_if_the_server_does(
    endpoint: ScriptedEndpoint,
    calls: Path,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    endpoint.reply = lambda chat: f"my key is {KEY}"  # noqa: ARG005
    endpoint.faults.extend(["none", *[fault] * 4])
    client = ChatClient(endpoint.at(api_key_env="MY_KEY"), Journal(calls))
    assert client.ask_many([question("hello")], [str])[0].value == "my key is ***"
    with pytest.raises(WorkFailed) as caught:
        client.ask_many([question("how many?")], [number])
    assert {request.headers["authorization"] for request in endpoint.requests} == {f"Bearer {KEY}"}
    assert "***" in str(caught.value)
    shown = "".join(traceback.format_exception(caught.value))
    assert KEY not in f"{shown} {client!r} {client.endpoint!r} {vars(caught.value)}"
    assert any(record.name.startswith("openai") for record in caplog.records)
    assert not any(KEY in f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert KEY.encode() not in b"".join(path.read_bytes() for path in calls.iterdir())


def test_a_placeholder_in_place_of_a_key_is_not_masked_in_words(
    endpoint: ScriptedEndpoint, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "key")
    endpoint.reply = lambda chat: "The key is at 1."  # noqa: ARG005
    client = ChatClient(endpoint.at(api_key_env="MY_KEY"), Journal(calls))
    assert client.ask_many([question("hello")], [str])[0].value == "The key is at 1."


def test_odd_text_is_kept_as_it_can_be_written(endpoint: ScriptedEndpoint, calls: Path) -> None:
    endpoint.reply = lambda chat: "half \ud800 of a pair, a\u2028b\x00c\x7f é 🚕"  # noqa: ARG005
    for _ in range(2):
        assert ask(endpoint.at(), "hello", calls=calls) == ["half ? of a pair, a\u2028b\x00c\x7f é 🚕"]
    assert len(endpoint.requests) == 1
