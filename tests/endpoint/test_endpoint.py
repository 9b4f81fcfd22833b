from __future__ import annotations

from dataclasses import replace

import pytest

from reflectrl.core import Image, InvalidInput
from reflectrl.core.messages import PicturedChat, TokenPrompt
from reflectrl.endpoint.account import Price
from reflectrl.endpoint.endpoint import NO_KEY, PICTURE_TOKENS, PRIVATE_TIMEOUT_S, TIMEOUT_S, Endpoint

CHAT = [{"role": "user", "content": "hello"}]


def test_a_bad_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, "  \n", "sk-säcret"):
        monkeypatch.delenv("MY_KEY", raising=False) if value is None else monkeypatch.setenv("MY_KEY", value)
        with pytest.raises(InvalidInput, match="MY_KEY") as caught:
            Endpoint(api_key_env="MY_KEY").key()
        assert "cret" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-1\n")
    assert Endpoint(api_key_env="MY_KEY").key() == "sk-1"


@pytest.mark.parametrize(
    "fields",
    [
        {"base_url": "localhost:8000"},
        {"azure_api_version": "2024-06-01"},
        {"base_url": "http://me:secret@host/v1"},
        {"base_url": "https://secret@host/v1"},
        {"base_url": "https://host/v1?api_key=secret"},
        {"base_url": "https://host/v1#secret"},
        {"base_url": "http://host:secret/v1"},
        {"base_url": "http://☃:1/v1"},
        *({"base_url": f"http://{host}/v1"} for host in ("134744072", "0x08080808", "8.8.2056", "127.1", "0x7f.1.")),
    ],
    ids=str,
)
def test_an_invalid_address_is_refused_and_its_credentials_are_not_shown(fields: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="base_url") as caught:
        Endpoint(**fields).key()
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


OWN = ("http://localhost:8000/v1", "http://[::1]:1/v1", "http://gpu-box:8000", "http://10.0.0.7/models/m@1")


@pytest.mark.parametrize(
    "url", [None, "https://api.example.com/v1", "https://8.8.8.8/v1", "https://[::ffff:8.8.8.8]/v1", *OWN]
)
def test_a_private_server_may_be_slow(url: str | None) -> None:
    assert Endpoint(base_url=url).attempt_s == (PRIVATE_TIMEOUT_S if url in OWN else TIMEOUT_S)
    assert Endpoint(base_url=url, timeout_s=5.0).attempt_s == 5.0


def test_an_unnamed_key_leaves_the_network_only_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with pytest.raises(InvalidInput, match=r"OPENAI_API_KEY unencrypted; write https"):
        Endpoint(base_url="http://api.openai.com/v1").key()
    for url in (None, "https://api.openai.com/v1", *OWN):
        assert Endpoint(base_url=url).key() == "sk-1"
    assert Endpoint(base_url="http://gpu.example.org/v1").key() == NO_KEY
    assert Endpoint(base_url="http://gpu.example.org/v1", api_key_env="OPENAI_API_KEY").key() == "sk-1"


def test_replicas_get_no_key_that_is_not_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("MINE", "key-1")
    assert Endpoint(base_url=OWN[0], replicas=[OWN[3]]).key() == "sk-1"
    assert Endpoint(base_url=OWN[0], replicas=["https://api.example.com/v1"]).key() == NO_KEY
    for url in (None, "https://api.openai.com/v1"):
        with pytest.raises(InvalidInput, match="replicas was given for OpenAI"):
            Endpoint(base_url=url, replicas=[OWN[0]]).key()


def test_token_ids_are_continued_alike_at_any_address() -> None:
    text, here = TokenPrompt([1, 2], end=0, seed=7), Endpoint(base_url=OWN[0], temperature=0.5)
    there = replace(here, base_url=OWN[1], replicas=[OWN[2]])
    assert here.digest(text, "1") == there.digest(text, "1") != here.digest(text, "2")
    others = TokenPrompt([1, 3], end=0), TokenPrompt([12], end=0), TokenPrompt([1, 2], end=0, allowed=[4])
    assert len({here.digest(each, "1") for each in (text, *others)}) == 4
    assert here.body(text)["prompt"] == [1, 2]
    assert (here.body(text)["seed"], here.body(others[2])["max_tokens"]) == (7, 1)


def test_calls_are_equal_if_everything_that_shapes_their_replies_is() -> None:
    same = Endpoint(concurrency=1, timeout_s=1.0, max_attempts=1, max_rejected=0)
    others = Endpoint(model="b"), Endpoint(base_url="http://b"), Endpoint(temperature=0.5), Endpoint(max_tokens=9)
    assert same.digest(CHAT, "1") == Endpoint().digest(CHAT, "2")  # at temperature 0 a draw changes nothing
    assert len({endpoint.digest(CHAT) for endpoint in (same, *others)}) == 5
    assert others[2].digest(CHAT, "1") != others[2].digest(CHAT, "2")


def test_the_most_that_a_call_may_cost() -> None:
    chat = [{"role": "user", "content": "häl"}, {"role": "user", "content": ""}]  # 4 bytes, 16 around each
    assert Endpoint(price=Price(1_000_000, 0)).max_cost(chat) == 36
    assert Endpoint(price=Price(0, 1_000_000), max_tokens=50).max_cost(chat) == 50
    assert Endpoint().max_cost(chat) == 0


def test_other_pictures_make_another_call() -> None:
    one, other = (PicturedChat(CHAT, [Image(data)]) for data in (b"one", b"other"))
    endpoint = Endpoint(price=Price(1_000_000, 0))
    assert len({endpoint.digest(chat) for chat in (CHAT, one, other)}) == 3
    assert endpoint.max_cost(one) == endpoint.max_cost(CHAT) + PICTURE_TOKENS
