from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.players.chat import ChatClient
from reflectrl.players.endpoint import Endpoint
from reflectrl.players.remote import RemotePolicy, RemoteReflector
from reflectrl.prompts import Menu, Prompt


def at(scripted: ScriptedEndpoint, **changes: object) -> Endpoint:
    fields: dict[str, object] = {"base_url": scripted.url, "backoff_s": 0.01, "max_attempts": 4, **changes}
    return Endpoint(**fields)  # type: ignore[arg-type]


def ask(endpoint: Endpoint, *texts: str, read: Callable[[str], str] = str) -> list[str]:
    chats = [[{"role": "user", "content": text}] for text in texts]
    return [reply.value for reply in ChatClient(endpoint).ask_many(chats, [read] * len(chats))]


def echo(chat: Chat) -> str:
    return f"you said {chat[-1]['content']}"


def policy_prompt(*actions: str) -> Prompt:
    menu = Menu(tuple(str(number) for number in range(len(actions))), actions)
    return Prompt("", (), f"A room.\n{menu.text}Action:\n", menu)


def test_replies_come_in_the_order_of_the_questions(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = echo
    texts = [str(number) for number in range(12)]
    assert ask(at(endpoint), *texts) == [f"you said {text}" for text in texts]


def test_no_more_calls_are_in_flight_than_allowed(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["slow:0.05"] * 8)
    ask(at(endpoint, concurrency=3), *"abcdefgh")
    assert endpoint.peak == 3


@pytest.mark.parametrize(
    "fault", ["500", "503", "408", "409", "html", "truncated", "cut", "empty", "no-choices", "list"]
)
def test_a_passing_fault_is_tried_again(endpoint: ScriptedEndpoint, fault: str) -> None:
    endpoint.faults.extend([fault, fault])
    client = ChatClient(at(endpoint))
    [reply] = client.ask_many([[{"role": "user", "content": "hello"}]], [str])
    assert reply.value == "fine"
    assert (client.usage.calls, client.usage.retries, client.usage.completion_tokens >= 5) == (3, 2, True)


def test_attempts_are_bounded_and_the_last_fault_is_told(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["500"] * 10)
    with pytest.raises(WorkFailed, match=r"model 'gpt-4o' at http://127.* in 4 attempts: .*status 500: .*injected 500"):
        ask(at(endpoint), "hello")
    assert len(endpoint.requests) == 4


def test_a_pause_that_the_server_asks_for_is_kept(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.append("429:1")
    assert ask(at(endpoint), "hello") == ["fine"]
    first, second = endpoint.requests
    assert 0.9 < second.time - first.time < 2


@pytest.mark.parametrize(
    ("fault", "advice"),
    [
        ("401", "environment variable OPENAI_API_KEY"),
        ("403", "environment variable OPENAI_API_KEY"),
        ("404", "check endpoint.model"),
        ("400", "request was refused"),
        ("quota", "quota is used up"),
        ("429:600", "pause of 600 seconds"),
    ],
)
def test_a_fault_that_no_repetition_mends_stops_at_once(endpoint: ScriptedEndpoint, fault: str, advice: str) -> None:
    endpoint.faults.append(fault)
    with pytest.raises(WorkFailed, match=advice):
        ask(at(endpoint), "hello")
    assert len(endpoint.requests) == 1


def test_a_reply_cut_before_its_first_word_names_max_tokens(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["length"] * 4)
    with pytest.raises(WorkFailed, match="raise max_tokens"):
        ask(at(endpoint), "hello")


def test_an_attempt_has_a_deadline(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.append("slow:5")
    begin = time.monotonic()
    assert ask(at(endpoint, timeout_s=0.3), "hello") == ["fine"]
    assert time.monotonic() - begin < 3


def test_an_endpoint_that_is_down_is_named(endpoint: ScriptedEndpoint) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(WorkFailed, match=rf"{url} gave no usable reply in 2 attempts: it cannot be reached"):
        ask(at(endpoint, base_url=url, max_attempts=2), "hello")


def test_openai_without_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(InvalidInput, match="environment variable MY_KEY is not set"):
        ChatClient(Endpoint(api_key_env="MY_KEY"))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({"base_url": "localhost:8000"}, "no address"), ({"azure_api_version": "2024-06-01"}, "without base_url")],
)
def test_an_address_that_cannot_be_one_is_refused(fields: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        ChatClient(Endpoint(**fields))  # type: ignore[arg-type]


def test_the_key_is_sent_and_shown_nowhere(endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret-123")
    endpoint.faults.extend(["none", "echo-key"])
    there = at(endpoint, api_key_env="MY_KEY")
    client = ChatClient(there)
    client.ask_many([[{"role": "user", "content": "hello"}]], [str])
    assert endpoint.requests[0].headers["authorization"] == "Bearer sk-secret-123"
    with pytest.raises(WorkFailed, match="key was refused") as caught:
        client.ask_many([[{"role": "user", "content": "hello"}]], [str])
    assert "secret" not in f"{caught.value!r} {there!r} {client!r} {vars(caught.value)}"


def test_a_server_of_ones_own_is_asked_with_the_older_parameter_name(endpoint: ScriptedEndpoint) -> None:
    ask(at(endpoint, max_tokens=33, temperature=0.5, model="mine"), "hello")
    body = endpoint.requests[0].body
    assert (body["max_tokens"], body["temperature"], body["model"]) == (33, 0.5, "mine")
    assert "max_completion_tokens" not in body


def test_azure_is_asked_on_its_own_path(endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "azure-key")
    ask(at(endpoint, base_url=endpoint.root, azure_api_version="2024-06-01", model="my-gpt", max_tokens=33), "hello")
    [request] = endpoint.requests
    assert request.path == "/openai/deployments/my-gpt/chat/completions?api-version=2024-06-01"
    assert request.headers["api-key"] == "azure-key"
    assert request.body["max_completion_tokens"] == 33


def test_a_greedy_reflector_asks_equal_prompts_once(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: f"thoughts on\n {chat[-1]['content']}"
    reflector = RemoteReflector(at(endpoint))
    prompts = [Prompt("", (), text) for text in ("here", "there", "here")]
    said = reflector.reflect(prompts, [0.0] * 3)
    assert [utterance.text for utterance in said] == ["thoughts on here", "thoughts on there", "thoughts on here"]
    assert [(utterance.cached, utterance.tokens) for utterance in said] == [(False, 5), (False, 5), (True, 0)]
    assert all(utterance.cached for utterance in reflector.reflect(prompts, [0.0] * 3))
    assert len(endpoint.requests) == 2


def test_a_small_cache_forgets_the_oldest(endpoint: ScriptedEndpoint) -> None:
    reflector = RemoteReflector(at(endpoint), cache_size=1)
    for text in ("here", "there", "there", "here"):
        reflector.reflect([Prompt("", (), text)], [0.0])
    assert [request.chat[-1]["content"] for request in endpoint.requests] == ["here", "there", "here"]


def test_a_sampling_reflector_is_not_cached(endpoint: ScriptedEndpoint) -> None:
    reflector = RemoteReflector(at(endpoint, temperature=0.7))
    reflector.reflect([Prompt("", (), "here")] * 2, [0.1, 0.2])
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("reply", ["1", " 1.\n", "`1`", "**1**", "1. go west", "'1. go west'"])
def test_a_policy_reads_one_label(endpoint: ScriptedEndpoint, reply: str) -> None:
    endpoint.reply = lambda chat: reply  # noqa: ARG005
    [decision] = RemotePolicy(at(endpoint)).act([policy_prompt("go east", "go west")], [0.0])
    assert (decision.index, decision.action, decision.probabilities) == (1, "go west", ())


@pytest.mark.parametrize("reply", ["7", "I choose 1", "go west", "1 or 0", "0\n1", "-1"])
def test_a_reply_that_is_no_label_is_asked_again_with_the_reason(endpoint: ScriptedEndpoint, reply: str) -> None:
    endpoint.reply = lambda chat: reply if len(chat) == 2 else "0"
    [decision] = RemotePolicy(at(endpoint)).act([policy_prompt("go east", "go west")], [0.0])
    assert decision.action == "go east"
    assert [message["role"] for message in endpoint.requests[1].chat] == ["system", "user", "assistant", "user"]
    assert "exactly one of: 0, 1" in endpoint.requests[1].chat[-1]["content"]


def test_a_policy_that_never_names_a_label_fails(endpoint: ScriptedEndpoint) -> None:
    endpoint.reply = lambda chat: "bananas"  # noqa: ARG005
    with pytest.raises(WorkFailed, match="last reply was 'bananas'"):
        RemotePolicy(at(endpoint)).act([policy_prompt("go east", "go west")], [0.0])
    assert len(endpoint.requests) == 4


def test_a_policy_is_not_shown_a_reflectors_prompt(endpoint: ScriptedEndpoint) -> None:
    with pytest.raises(InvalidInput, match="expected one with a menu"):
        RemotePolicy(at(endpoint)).act([Prompt("", (), "here")], [0.0])
