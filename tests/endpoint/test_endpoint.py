from __future__ import annotations

import pytest

from reflectrl.core import InvalidInput
from reflectrl.endpoint.account import Price
from reflectrl.endpoint.endpoint import PRIVATE_TIMEOUT_S, TIMEOUT_S, Endpoint

CHAT = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("value", [None, "", "  \n"])
def test_openai_without_a_key_names_the_variable(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_KEY", value)
    with pytest.raises(InvalidInput, match="MY_KEY"):
        Endpoint(api_key_env="MY_KEY").key()


def test_a_key_is_stripped_and_a_broken_one_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1\n")
    assert Endpoint(api_key_env="MY_KEY").key() == "sk-1"
    monkeypatch.setenv("MY_KEY", "sk-säcret")
    with pytest.raises(InvalidInput, match="MY_KEY") as caught:
        Endpoint(api_key_env="MY_KEY").key()
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("fields", [{"base_url": "localhost:8000"}, {"azure_api_version": "2024-06-01"}])
def test_an_invalid_address_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="base_url"):
        Endpoint(**fields).key()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "http://somebody:secret@host/v1",
        "https://secret@host/v1",
        "https://host/v1?api_key=secret",
        "https://host/v1#secret",
        "somebody:secret@host/v1",
        "http://host:secret/v1",
    ],
)
def test_an_address_with_credentials_is_refused_and_they_are_not_shown(url: str) -> None:
    with pytest.raises(InvalidInput, match="base_url") as caught:
        Endpoint(base_url=url).key()
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def test_an_address_may_have_an_at_sign_in_its_path() -> None:
    Endpoint(base_url="https://host/models/m@1").key()


OWN = ("http://localhost:8000/v1", "http://127.0.0.1:1", "http://[::1]:1/v1", "http://gpu-box:8000", "http://10.0.0.7")


@pytest.mark.parametrize("url", [None, "https://api.example.com/v1", "https://8.8.8.8/v1", *OWN])
def test_a_server_on_a_private_address_may_be_slow_unless_the_recipe_says_otherwise(url: str | None) -> None:
    assert Endpoint(base_url=url).attempt_s == (PRIVATE_TIMEOUT_S if url in OWN else TIMEOUT_S)
    assert Endpoint(base_url=url, timeout_s=5.0).attempt_s == 5.0


@pytest.mark.parametrize("changes", [{"model": "b"}, {"base_url": "http://b"}, {"temperature": 0.5}, {"max_tokens": 9}])
def test_what_shapes_a_reply_tells_calls_apart(changes: dict[str, object]) -> None:
    assert Endpoint(**changes).digest(CHAT) != Endpoint().digest(CHAT)  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"concurrency": 1}, {"timeout_s": 1.0}, {"max_attempts": 1}, {"max_rejected": 0}])
def test_how_fast_and_how_often_it_is_asked_does_not(changes: dict[str, object]) -> None:
    assert Endpoint(**changes).digest(CHAT) == Endpoint().digest(CHAT)  # type: ignore[arg-type]


def test_a_draw_tells_calls_apart_above_temperature_0_only() -> None:
    cold, warm = Endpoint(), Endpoint(temperature=0.7)
    assert cold.digest(CHAT, "1") == cold.digest(CHAT, "2")
    assert warm.digest(CHAT, "1") != warm.digest(CHAT, "2")


def test_a_call_costs_at_most_a_token_a_byte_and_all_the_tokens_it_may_answer() -> None:
    chat = [{"role": "user", "content": "häl"}, {"role": "user", "content": ""}]  # 4 bytes, 16 around each
    assert Endpoint(price=Price(1_000_000, 0)).max_cost(chat) == 36
    assert Endpoint(price=Price(0, 1_000_000), max_tokens=50).max_cost(chat) == 50
    assert Endpoint().max_cost(chat) == 0
