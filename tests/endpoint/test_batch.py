"""OpenAI's Batch mode against a server that speaks its Files and Batches API."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from faulty import wait_until
from interruptions import DEAR, ask_dearly, submit_batch
from scripted_endpoint import Chat, ScriptedEndpoint, dearest, replies_in
from warm_processes import WarmProcess

from reflectrl.config import Recipe
from reflectrl.config.spending import open_account
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.stop import run_async
from reflectrl.data_gen import DataSummary, generate
from reflectrl.data_gen.generate import Spending
from reflectrl.endpoint.account import Account, Tokens
from reflectrl.endpoint.client import ChatClient
from reflectrl.endpoint.journal import REPLIES, Journal
from reflectrl.endpoint.openai_batch import OPEN_BATCHES, Batches

PRICE = {"prompt": 2.5, "completion": 10.0}
ONE = (7 * 2.5 + 5 * 10) / 1e6
"""Cost of a call in dollars."""


def recipe(endpoint: ScriptedEndpoint, **data: object) -> Recipe:
    there = {"base_url": endpoint.url, "max_attempts": 3, "backoff_s": 0.01, "price": PRICE}
    fields = {"teacher": "openai", "trajectory": "oracle", "endpoint": there, "samples": 12, "concurrency": 2, **data}
    return Recipe.model_validate({"name": "test", "env": {"name": "number_line"}, "data": fields})


def reflect(chat: Chat) -> str:
    return f"It is {len(chat[1]['content'])} far\u2028away."


def run(endpoint: ScriptedEndpoint, folder: Path, what: Any = None, **data: object) -> tuple[DataSummary | None, str]:
    lines: list[str] = []
    done = generate(recipe(endpoint, **data), folder, spending=Spending(batch=what), tell=lines.append)
    return done, lines[-1]


def rows(folder: Path) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in sorted(folder.glob("[ds]*/*"))}


@pytest.fixture
def online(endpoint: ScriptedEndpoint, tmp_path: Path) -> dict[str, bytes]:
    """The rows made from ordinary calls instead of a batch."""
    endpoint.reply = reflect
    run(endpoint, tmp_path / "online")
    endpoint.requests.clear()
    return rows(tmp_path / "online")


def test_calls_are_submitted_fetched_and_not_made_again(
    endpoint: ScriptedEndpoint, tmp_path: Path, online: dict[str, bytes]
) -> None:
    folder = tmp_path / "batched"
    _, report = run(endpoint, folder, "submit")
    [calls] = endpoint.batches.calls
    assert f"{len(calls)} calls" in report
    assert len({call["custom_id"] for call in calls}) == len(calls) > 3
    assert {(call["method"], call["url"]) for call in calls} == {("POST", "/v1/chat/completions")}
    for state in ("validating", "in_progress"):
        assert state in run(endpoint, folder, "collect")[1]
    assert replies_in(folder / "calls" / "teacher") == []
    most = [recipe(endpoint).data.endpoint.max_cost(call["body"]["messages"]) for call in calls]
    assert open_account(recipe(endpoint), folder).spent == pytest.approx(sum(most) / 2)  # until they are collected
    assert f"completed: {len(calls)} replies" in run(endpoint, folder, "collect")[1]
    run(endpoint, folder, "submit")  # nothing is left
    assert len(endpoint.batches.calls) == 1
    summary, _ = run(endpoint, folder)
    assert endpoint.requests == []
    assert rows(folder) == online
    assert summary.usage.calls == 0
    assert open_account(recipe(endpoint), folder).spent == pytest.approx(len(calls) * ONE / 2)


def test_expired_and_failed_calls_are_made_again(
    endpoint: ScriptedEndpoint, tmp_path: Path, online: dict[str, bytes]
) -> None:
    folder = tmp_path / "batched"
    endpoint.batches.states = ["expired"]  # half of the calls are done then
    run(endpoint, folder, "submit")
    [calls] = endpoint.batches.calls
    chats = [call["body"]["messages"] for call in calls]
    endpoint.batches.refused = lambda chat: chat in chats[::3]
    report = run(endpoint, folder, "collect")[1]
    kept = [chat for chat in chats[: len(chats) // 2] if chat not in chats[::3]]
    assert f"expired: {len(kept)} replies" in report
    assert f"{len(chats) - len(kept)} calls" in report
    shutil.copytree(folder, tmp_path / "ordinary")
    run(endpoint, tmp_path / "ordinary")
    assert {str(request.chat) for request in endpoint.requests} >= {str(chat) for chat in chats if chat not in kept}
    assert not [request for request in endpoint.requests if request.chat in kept]
    endpoint.requests.clear()
    endpoint.batches.states, endpoint.batches.refused = ["completed"], lambda chat: False  # noqa: ARG005
    run(endpoint, folder, "submit")
    assert [call["body"]["messages"] for call in endpoint.batches.calls[1]] == [c for c in chats if c not in kept]
    run(endpoint, folder, "collect")
    run(endpoint, folder)
    assert endpoint.requests == []
    assert rows(folder) == rows(tmp_path / "ordinary") == online


def test_calls_wait_for_the_open_batch(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.batches.states = ["failed"]
    run(endpoint, tmp_path, "submit")
    for what in ("submit", None):
        with pytest.raises(InvalidInput, match="batch-0"):
            run(endpoint, tmp_path, what)
    assert (len(endpoint.batches.calls), endpoint.requests) == (1, [])
    path = tmp_path / "calls" / "teacher" / OPEN_BATCHES
    names = path.read_text()
    path.write_text('{"a": 1}')
    with pytest.raises(InvalidInput, match=r"batches.json"):
        run(endpoint, tmp_path, "collect")
    path.write_text(names)
    assert "Line 1 is no good." in run(endpoint, tmp_path, "collect")[1]
    with pytest.raises(InvalidInput, match="--batch submit"):
        run(endpoint, tmp_path, "collect")


def test_replies_fetched_before_a_kill_are_not_kept_or_paid_twice(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply, endpoint.batches.states = reflect, ["completed"]
    run(endpoint, tmp_path, "submit")
    names, kept = (tmp_path / "calls" / "teacher" / name for name in (OPEN_BATCHES, REPLIES))
    still_open = names.read_text()
    run(endpoint, tmp_path, "collect")
    replies = replies_in(kept.parent)
    lines = kept.read_text().split("\n")
    names.write_text(still_open)  # killed before it was deleted,
    kept.write_text("\n".join(lines[: len(replies) + 3])[:-9])  # in the middle of a line
    run(endpoint, tmp_path, "collect")
    assert replies_in(kept.parent) == replies
    assert open_account(recipe(endpoint), tmp_path).spent == pytest.approx(len(replies) * ONE / 2)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "created"), [("slow:9", 1), ("drip:9", 0)])
def test_a_batch_survives_a_kill_during_its_creation(
    endpoint: ScriptedEndpoint, tmp_path: Path, fault: str, created: int
) -> None:
    endpoint.batches.states, endpoint.usage = ["completed"], dearest
    endpoint.faults.extend(["none", "none", fault])  # upload, look, creation
    half = Tokens(27, 200).cost(DEAR.price) / 2
    process = WarmProcess(tmp_path / "log", submit_batch, endpoint.url, tmp_path, 6)
    wait_until(lambda: len(endpoint.batches.calls) == created and not endpoint.faults)
    process.kill()
    account = Account()
    account.count(Journal(tmp_path).paid, DEAR.price)
    assert account.spent == pytest.approx(6 * half)
    if created:
        with pytest.raises(InvalidInput, match="batch-0"):
            submit_batch(endpoint.url, tmp_path, 6)
    else:
        assert "batch-0" in submit_batch(endpoint.url, tmp_path, 6)
    client = ChatClient(replace(DEAR, base_url=endpoint.url), Journal(tmp_path), account)
    assert "6 replies" in run_async(Batches(tmp_path, client).collect())
    assert (len(endpoint.batches.calls), account.spent) == (1, pytest.approx(6 * half))
    assert sum(tokens.cost(DEAR.price, batch=True) for tokens, _ in Journal(tmp_path).paid) == pytest.approx(6 * half)


def test_a_batch_given_up_counts_only_what_it_answered(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    there = replace(DEAR, base_url=endpoint.url)
    most = Tokens(27, 200).cost(DEAR.price) / 2
    for folder, states, spent in ((tmp_path / "failed", "failed", 0.0), (tmp_path / "given up", "", 6 * most)):
        endpoint.batches.states = [states]
        submit_batch(endpoint.url, folder, 6)
        if states:
            run_async(Batches(folder, ChatClient(there, Journal(folder))).collect())
        else:
            (folder / OPEN_BATCHES).unlink()
            ask_dearly(endpoint.url, folder, 6)
        batched = [(tokens, batch) for tokens, batch in Journal(folder).paid if batch]
        assert sum(tokens.cost(DEAR.price, batch=True) for tokens, _ in batched) == pytest.approx(spent)


def test_a_lost_upload_is_repeated_and_a_lost_confirmation_is_not(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.faults.extend(["500", "reset", "none", "none", "cut"])  # upload, upload, upload, look, creation
    run(endpoint, tmp_path, "submit")
    [calls] = endpoint.batches.calls
    assert len(calls) > 3


def test_too_many_calls_become_several_batches(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply, endpoint.batches.states = lambda chat: f"you said {chat[0]['content']}", ["completed"]
    client = ChatClient(endpoint.at(), Journal(tmp_path))
    chats = [[{"role": "user", "content": str(number)}] for number in range(10)]
    calls = {client.endpoint.digest(chat): chat for chat in chats}
    batches = Batches(tmp_path, client, max_calls=4)
    endpoint.faults.extend(["none"] * 3 + ["401"])
    with pytest.raises(WorkFailed, match="401"):
        run_async(batches.submit(calls))
    assert "4 replies" in run_async(Batches(tmp_path, client).collect())
    assert "batch-1, batch-2" in run_async(batches.submit(dict(list(calls.items())[4:])))
    assert [len(portion) for portion in endpoint.batches.calls] == [4, 4, 2]
    client.journal.reject(list(calls)[9], chats[9], "it said no")
    assert "1 replies kept, 1 calls" in run_async(batches.collect())
    assert [client.journal.known(asked) for asked in list(calls)[:9]] == [f"you said {number}" for number in range(9)]


def test_a_batch_that_might_pass_the_limit_or_has_a_teacher_that_plays_is_not_submitted(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    with pytest.raises(WorkFailed, match="--max-cost"):
        generate(recipe(endpoint), tmp_path, spending=Spending(max_cost=0.001, batch="submit"))
    for teacher in ("openai", "expert"):
        with pytest.raises(InvalidInput, match="openai and oracle"):
            run(endpoint, tmp_path, "submit", teacher=teacher, trajectory="teacher")
    assert endpoint.batches.seen == endpoint.requests == []
