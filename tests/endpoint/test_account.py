from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import ScriptedEndpoint, dearest

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.endpoint.account import Account, Price, Tokens, Usage
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.endpoint import Endpoint
from reflectrl.endpoint.journal import Journal

PRICE = Price(prompt=2.5, completion=10.0, cached=1.25)
TEXTS = [f"question {number:02}" for number in range(40)]


def ask(endpoint: Endpoint, folder: Path, account: Account, *texts: str) -> Usage:
    client = ChatClient(endpoint, Journal(folder), account)
    replies = client.ask_many([[{"role": "user", "content": text}] for text in texts], [str] * len(texts))
    assert {reply.value for reply in replies} == {"fine"}
    return client.usage


@pytest.mark.parametrize(
    ("tokens", "price", "cost"),
    [
        (Tokens(1000, 100), PRICE, 0.0035),
        (Tokens(1000, 100), None, 0.0),
        (Tokens(1_000_000, 0, cached=400_000), PRICE, 0.6 * 2.5 + 0.4 * 1.25),
        (Tokens(1_000_000, 0, cached=400_000), Price(prompt=2.5, completion=10.0), 2.5),
    ],
)
def test_the_cost_of_tokens(tokens: Tokens, price: Price | None, cost: float) -> None:
    assert tokens.cost(price) == pytest.approx(cost)
    assert tokens.cost(price, batch=True) == pytest.approx(cost / 2)


def test_every_reply_is_paid_as_the_endpoint_counted_usable_or_not(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    details = {"cached_tokens": 400, "audio_tokens": 0}
    endpoint.usage = lambda *_: {"prompt_tokens": 1000, "completion_tokens": 20, "prompt_tokens_details": details}
    endpoint.faults.extend(["500", "no-usage", "empty", "none"])  # an empty reply has 7 and 5 tokens
    account, later = Account(), Account()
    usage = ask(endpoint.at(price=PRICE, concurrency=1), tmp_path, account, "a", "b")
    most = endpoint.at().most([{"role": "user", "content": "a"}])  # what a reply without counts is charged
    prompt, written = 1007 + most.prompt, 25 + most.completion
    cost = pytest.approx(((prompt - 400) * 2.5 + 400 * 1.25 + written * 10) / 1e6)
    assert usage == Usage(4, 2, prompt_tokens=prompt, cached_tokens=400, completion_tokens=written, cost=cost)
    later.count(Journal(tmp_path).paid, PRICE)
    assert (account.spent, later.spent) == (cost, cost)


@pytest.mark.parametrize(
    ("odd", "counted"),
    [
        ({"prompt_tokens": True, "completion_tokens": "9"}, None),
        ({"prompt_tokens": -5, "completion_tokens": 10**400}, None),
        ({"prompt_tokens": None, "prompt_tokens_details": {"cached_tokens": 50}}, None),
        ({"prompt_tokens": 1.5, "prompt_tokens_details": []}, None),
        ({"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 99}}, Tokens(10, cached=10)),
    ],
)
def test_nonsensical_counts_cost_the_most_possible(
    endpoint: ScriptedEndpoint, tmp_path: Path, odd: dict[str, Any], counted: Tokens | None
) -> None:
    endpoint.usage = lambda *_: odd
    account, most = Account(), endpoint.at().most([{"role": "user", "content": "a"}])
    ask(endpoint.at(price=PRICE), tmp_path / "priced", account, "a")
    assert account.spent == (counted or most).cost(PRICE)
    assert Journal(tmp_path / "priced").paid == [(counted or most, False)]
    ask(endpoint.at(), tmp_path / "free", account, "a")
    assert Journal(tmp_path / "free").paid == [(counted or Tokens(), False)]


def test_the_limit_is_used_up_and_never_passed(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.usage, endpoint.latency_s = dearest, 0.02
    there = endpoint.at(price=PRICE, concurrency=8, max_tokens=200)
    one = Tokens(27, 200).cost(PRICE)
    for limit, answered in ((10.5 * one, 10), (12.0 * one, 12)):  # earlier processes' spending counts
        account = Account(limit)
        account.count(Journal(tmp_path).paid, PRICE)
        with pytest.raises(WorkFailed, match="--max-cost"):
            ask(there, tmp_path, account, *TEXTS)
        assert account.spent <= limit
        assert len(endpoint.requests) == answered
    account = Account(100 * one)
    account.count(Journal(tmp_path).paid, PRICE)
    ask(there, tmp_path, account, *TEXTS)
    assert len(endpoint.requests) == 40
    assert account.spent == pytest.approx(40 * one)


def test_a_call_that_might_pass_the_limit_waits(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.latency_s = 0.02
    there = endpoint.at(price=PRICE, concurrency=8, max_tokens=200)
    # not enough for 8 at worst; they cost less
    account = Account(3 * there.max_cost([{"role": "user", "content": TEXTS[0]}]))
    ask(there, tmp_path, account, *TEXTS)
    assert endpoint.peak > 1
    assert account.spent == pytest.approx(40 * (7 * 2.5 + 5 * 10) / 1e6)


def test_a_cost_limit_needs_a_price(endpoint: ScriptedEndpoint) -> None:
    with pytest.raises(InvalidInput, match="gpt-4o.*price"):
        ChatClient(endpoint.at(base_url="https://chat.example/v1"), account=Account(5))
    ChatClient(endpoint.at(), account=Account(5))
    for limit in (0.0, float("nan")):
        with pytest.raises(InvalidInput):
            Account(limit)


def test_usages_add_up_and_the_summary_has_every_count() -> None:
    usage = Usage(1200, 30, 4, 2, 90_000, 10, 8_000, 0.305) + Usage(calls=1, cost=1.0, lenient=6, unanswered=9)
    assert usage == Usage(1201, 30, 4, 2, 90_000, 10, 8_000, 1.305, lenient=6, unanswered=9)
    for count in ("1,201", "30", "4", "2", "6", "9", "90,000", "8,000", "1.3050", "1.5000"):
        assert f" {count} " in f" {usage.sentence(1.5)} "


def test_processes_of_one_launch_share_what_is_left() -> None:
    account = Account(10)
    account.spent = 4.0
    part = account.divided(3)
    assert (part.spent, part.max_cost, account.max_cost) == (4.0, 6.0, 10)
    assert Account().divided(2).max_cost is None
