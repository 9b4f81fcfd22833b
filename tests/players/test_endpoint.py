from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.players.account import Price
from reflectrl.players.endpoint import Endpoint

CHAT = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_openai_without_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(InvalidInput, match="environment variable MY_KEY is not set"):
        Endpoint(api_key_env="MY_KEY").key()


def test_a_key_with_characters_that_no_key_has_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-säcret")
    with pytest.raises(InvalidInput, match="MY_KEY has characters that no key has") as caught:
        Endpoint(api_key_env="MY_KEY").key()
    assert "cret" not in str(caught.value)


def test_a_key_may_end_with_the_line_break_of_the_file_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1\n")
    assert Endpoint(api_key_env="MY_KEY").key() == "sk-1"


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [({"base_url": "localhost:8000"}, "no address"), ({"azure_api_version": "2024-06-01"}, "without base_url")],
)
def test_an_address_that_cannot_be_one_is_refused(fields: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        Endpoint(**fields).key()  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"model": "b"}, {"base_url": "http://b"}, {"temperature": 0.5}, {"max_tokens": 9}])
def test_what_shapes_a_reply_tells_calls_apart(changes: dict[str, object]) -> None:
    assert Endpoint(**changes).digest(CHAT) != Endpoint().digest(CHAT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [{"concurrency": 1}, {"timeout_s": 1.0}, {"max_attempts": 1}, {"max_rejected": 0}, {"price": Price(1, 1)}],
)
def test_how_fast_how_often_and_how_dear_it_is_asked_does_not(changes: dict[str, object]) -> None:
    assert Endpoint(**changes).digest(CHAT) == Endpoint().digest(CHAT)  # type: ignore[arg-type]


def test_a_draw_tells_calls_apart_above_temperature_0_only() -> None:
    cold, warm = Endpoint(), Endpoint(temperature=0.7)
    assert cold.digest(CHAT, "1") == cold.digest(CHAT, "2")
    assert warm.digest(CHAT, "1") != warm.digest(CHAT, "2")


def test_a_call_costs_at_most_a_token_a_byte_and_all_the_tokens_it_may_answer() -> None:
    chat = [{"role": "user", "content": "häl"}, {"role": "user", "content": ""}]  # 4 bytes, 16 around each
    assert Endpoint(price=Price(1_000_000, 0)).most_cost(chat) == 36
    assert Endpoint(price=Price(0, 1_000_000), max_tokens=50).most_cost(chat) == 50
    assert Endpoint().most_cost(chat) == 0
