"""What servers of different providers send and refuse, besides the broken replies of ``test_chat``."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_endpoint import ScriptedEndpoint

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.messages import LabelChat
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import NO_KEY, Endpoint
from reflectrl.endpoint.replies import (
    LabelWays,
    Refused,
    UnusableReply,
    classify_error,
    read_tokens,
)
from reflectrl.seats.corrector import read_correction

CHAT = [{"role": "user", "content": "hello"}]
MENU = LabelChat(CHAT, ("0", "1", "2", "3"), ("south", "north", "east", "pick up"))


def completion(text: str | None, finish: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


def asks(endpoint: Endpoint) -> str:
    return ChatClient(endpoint).ask_many([CHAT], [str])[0].value


@pytest.mark.parametrize("fault", ["429", "429:0.02"])
def test_a_rate_limit_is_waited_out_and_uses_up_no_attempts(endpoint: ScriptedEndpoint, fault: str) -> None:
    endpoint.faults.extend([fault] * 6)
    assert asks(endpoint.at(max_attempts=1, backoff_s=0.001)) == "fine"
    assert len(endpoint.requests) == 7


def test_a_rate_limit_that_never_ends_ends_the_work(endpoint: ScriptedEndpoint) -> None:
    endpoint.faults.extend(["429"] * 1000)
    with pytest.raises(WorkFailed, match="429"):
        asks(endpoint.at(timeout_s=0.1, max_attempts=2))


def test_models_that_refuse_a_temperature_get_none(endpoint: ScriptedEndpoint) -> None:
    reasoning = endpoint.at(temperature=None)
    assert asks(reasoning) == "fine"
    assert "temperature" not in endpoint.requests[0].body
    assert reasoning.digest(CHAT, "1") != reasoning.digest(CHAT, "2")


@pytest.mark.parametrize(
    ("url", "name"),
    [
        (None, "max_completion_tokens"),
        ("https://eu.api.openai.com/v1", "max_completion_tokens"),
        ("https://mine.openai.azure.com/openai/v1", "max_completion_tokens"),
        ("https://notopenai.com/v1", "max_tokens"),
        ("http://localhost:8000/v1", "max_tokens"),
    ],
)
def test_openai_and_azure_get_the_new_name_of_the_limit(url: str | None, name: str) -> None:
    there = Endpoint(base_url=url, max_tokens=9)
    assert {key: value for key, value in there.body(CHAT).items() if key.startswith("max")} == {name: 9}
    assert there.is_openai == (name == "max_completion_tokens") != LabelWays(there).lenient


def test_a_key_of_openai_is_sent_to_no_other_provider(
    endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OTHER_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, f"value of {name}")
    assert Endpoint().key() == Endpoint(base_url="http://localhost:1/v1").key() == "value of OPENAI_API_KEY"
    assert Endpoint(base_url="https://api.example.com/v1").key() == NO_KEY
    assert Endpoint(base_url="https://api.example.com/v1", api_key_env="OTHER_KEY").key() == "value of OTHER_KEY"
    asks(endpoint.at())
    assert not [name for name in endpoint.requests[0].headers if name.lower().startswith("openai-")]
    refused = classify_error(Endpoint(base_url="https://api.example.com/v1"), 401, None, {}, "no key")
    assert "name that in api_key_env" in str(refused)


def test_a_key_in_place_of_its_variable_is_refused() -> None:
    with pytest.raises(InvalidInput, match="api_key_env is not a name") as caught:
        Endpoint(api_key_env="sk-proj-secret")
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    ("code", "said"),
    [("invalid_prompt", "flagged"), (None, "This model's maximum context length is 2048 tokens. However, you asked")],
)
def test_a_prompt_without_an_answer_is_set_aside(code: str | None, said: str) -> None:
    failure = classify_error(Endpoint(base_url="http://localhost:1/v1"), 400, code, {}, said)
    assert isinstance(failure, UnusableReply)
    assert (failure.answered, failure.final) == (True, True)
    assert isinstance(classify_error(Endpoint(), 400, code and "other", {}, "wrong field"), Refused)


def test_a_way_to_ask_that_worked_outlives_bad_replies() -> None:
    ways = LabelWays(Endpoint(base_url="http://localhost:1/v1"))
    assert ways.read("schema", MENU, completion('{"label": "3"}'), str).text == "3"
    for odd in (completion(""), completion('{"lab', "length")):
        with pytest.raises(UnusableReply) as caught:
            ways.read("schema", MENU, odd, str)
        assert (caught.value.free, ways.of(MENU)) == (False, "schema")
    with pytest.raises(UnusableReply) as caught:
        ways.read("schema", MENU, completion("Let me see."), str)
    assert (caught.value.free, ways.of(MENU)) == (True, "grammar")


def test_tokens_of_thinking_that_only_the_total_counts_are_paid_for() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 30, "total_tokens": 1130}
    assert read_tokens({"usage": usage}).completion == 1030
    assert read_tokens({"usage": {**usage, "total_tokens": 0}}).completion == 30


def test_half_a_character_in_a_correction_is_replaced() -> None:
    corrected = read_correction('{"evaluation": "NO", "correction": "It is \\ud83d  low."}')
    assert corrected == "It is ? low."
