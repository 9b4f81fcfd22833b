"""OpenAI's Batch mode against a server that speaks its Files and Batches API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.data_gen import DataSummary, generate
from reflectrl.data_gen.generate import Spending
from reflectrl.endpoint.batch import OPEN_BATCHES, BatchCall, Batches
from reflectrl.endpoint.chat import ChatClient
from reflectrl.endpoint.journal import REPLIES, Journal

ONE = (7 * 2.5 + 5 * 10) / 1e6
"""Dollars for a call."""


def recipe(endpoint: ScriptedEndpoint, **data: object) -> Recipe:
    there = {"base_url": endpoint.url, "max_attempts": 3, "price": {"prompt": 2.5, "completion": 10.0}}
    fields = {"teacher": "openai", "trajectory": "oracle", "endpoint": there, "samples": 12, "concurrency": 2, **data}
    return Recipe.model_validate({"name": "test", "env": {"name": "number_line"}, "data": fields})


def reflect(chat: Chat) -> str:
    return f"It is {len(chat[1]['content'])} far\u2028away."


def run(endpoint: ScriptedEndpoint, folder: Path, what: Any = None, **data: object) -> tuple[DataSummary | None, str]:
    told: list[str] = []
    done = generate(recipe(endpoint, **data), folder, spending=Spending(batch=what), tell=told.append)
    return done, told[-1]


def rows(folder: Path) -> dict[str, bytes]:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in sorted(folder.glob("[ds]*/*"))}


def replies(folder: Path) -> list[dict[str, Any]]:
    path = folder / "calls" / "teacher" / REPLIES
    return [json.loads(line) for line in path.read_text().split("\n") if line] if path.exists() else []


def by_hand(endpoint: ScriptedEndpoint, folder: Path) -> tuple[ChatClient, Batches, list[BatchCall]]:
    """Ten calls, at most four of them a batch."""
    client = ChatClient(endpoint.at(), Journal(folder))
    chats = [[{"role": "user", "content": str(number)}] for number in range(10)]
    calls = [BatchCall(client.endpoint.digest(chat), chat) for chat in chats]
    return client, Batches(folder, client, max_calls=4), calls


@pytest.fixture
def online(endpoint: ScriptedEndpoint, tmp_path: Path) -> dict[str, bytes]:
    """The rows of calls made in the ordinary way."""
    endpoint.reply = reflect
    run(endpoint, tmp_path / "online")
    endpoint.requests.clear()
    return rows(tmp_path / "online")


def test_calls_are_submitted_fetched_and_not_made_again(
    endpoint: ScriptedEndpoint, tmp_path: Path, online: dict[str, bytes]
) -> None:
    folder = tmp_path / "batched"
    _, told = run(endpoint, folder, "submit")
    [calls] = endpoint.batches.calls
    assert f"{len(calls)} calls" in told
    assert len({call["custom_id"] for call in calls}) == len(calls) > 3
    assert {(call["method"], call["url"]) for call in calls} == {("POST", "/v1/chat/completions")}
    for state in ("validating", "in_progress"):
        assert state in run(endpoint, folder, "collect")[1]
    assert replies(folder) == []
    assert f"completed: {len(calls)} replies" in run(endpoint, folder, "collect")[1]
    run(endpoint, folder, "submit")  # nothing is left
    assert len(endpoint.batches.calls) == 1
    summary, _ = run(endpoint, folder)
    assert endpoint.requests == []
    assert rows(folder) == online
    assert summary is not None
    assert (summary.usage.calls, summary.spent) == (0, pytest.approx(len(calls) * ONE / 2))


def test_calls_that_failed_are_made_in_the_ordinary_way(
    endpoint: ScriptedEndpoint, tmp_path: Path, online: dict[str, bytes]
) -> None:
    folder = tmp_path / "batched"
    endpoint.batches.states = ["completed"]
    run(endpoint, folder, "submit")
    [calls] = endpoint.batches.calls
    refused = [call["body"]["messages"] for call in calls[::3]]
    endpoint.batches.refused = lambda chat: chat in refused
    kept = len(calls) - len(refused)
    report = run(endpoint, folder, "collect")[1]
    assert f"{kept} replies" in report
    assert f"{len(refused)} calls" in report
    run(endpoint, folder)
    again = [request.chat for request in endpoint.requests]
    in_batch = [chat for chat in again if chat in [call["body"]["messages"] for call in calls]]
    assert sorted(map(str, in_batch)) == sorted(map(str, refused))
    assert rows(folder) == online


def test_a_batch_that_expired_gives_what_it_has_and_another_round_asks_for_the_rest(
    endpoint: ScriptedEndpoint, tmp_path: Path, online: dict[str, bytes]
) -> None:
    folder = tmp_path / "batched"
    endpoint.batches.states = ["expired"]
    run(endpoint, folder, "submit")
    count = len(endpoint.batches.calls[0])
    assert f"expired: {count // 2} replies" in run(endpoint, folder, "collect")[1]
    endpoint.batches.states = ["completed"]
    run(endpoint, folder, "submit")
    assert len(endpoint.batches.calls[1]) == count - count // 2
    run(endpoint, folder, "collect")
    run(endpoint, folder)
    assert endpoint.requests == []
    assert rows(folder) == online


def test_a_batch_that_failed_says_why_and_is_given_up(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.batches.states = ["failed"]
    run(endpoint, tmp_path, "submit")
    assert "Line 1 is no good." in run(endpoint, tmp_path, "collect")[1]
    with pytest.raises(InvalidInput, match="--batch submit"):
        run(endpoint, tmp_path, "collect")


@pytest.mark.parametrize("what", ["submit", None])
def test_calls_wait_until_the_open_batch_is_fetched(
    endpoint: ScriptedEndpoint, tmp_path: Path, what: str | None
) -> None:
    run(endpoint, tmp_path, "submit")
    with pytest.raises(InvalidInput, match="batch-0"):
        run(endpoint, tmp_path, what)
    assert len(endpoint.batches.calls) == 1
    assert endpoint.requests == []


def test_replies_fetched_before_a_kill_are_not_kept_or_paid_twice(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply, endpoint.batches.states = reflect, ["completed"]
    run(endpoint, tmp_path, "submit")
    still_open = (tmp_path / "calls" / "teacher" / OPEN_BATCHES).read_text()
    run(endpoint, tmp_path, "collect")
    lines = (tmp_path / "calls" / "teacher" / REPLIES).read_text().split("\n")
    (tmp_path / "calls" / "teacher" / OPEN_BATCHES).write_text(still_open)  # killed before it was struck out,
    (tmp_path / "calls" / "teacher" / REPLIES).write_text("\n".join(lines[:3])[:-9])  # in the middle of a line
    run(endpoint, tmp_path, "collect")
    assert sorted((tmp_path / "calls" / "teacher" / REPLIES).read_text().split("\n")) == sorted(lines)


def test_a_lost_upload_is_repeated_and_a_lost_confirmation_is_not(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.faults.extend(["500", "reset", "none", "none", "cut"])  # upload, upload, upload, look, creation
    run(endpoint, tmp_path, "submit")
    [calls] = endpoint.batches.calls
    assert len(calls) > 3


def test_more_calls_than_a_batch_may_hold_are_several(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.reply, endpoint.batches.states = lambda chat: f"you said {chat[0]['content']}", ["completed"]
    client, batches, calls = by_hand(endpoint, tmp_path)
    assert "batch-0, batch-1, batch-2" in client.run(batches.submit(calls))
    assert [len(portion) for portion in endpoint.batches.calls] == [4, 4, 2]
    client.run(batches.collect())
    assert [Journal(tmp_path).known(call.asked) for call in calls] == [f"you said {number}" for number in range(10)]


def test_batches_submitted_before_a_failure_are_known(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.batches.states = ["completed"]
    endpoint.faults.extend(["none"] * 3 + ["401"])
    client, batches, calls = by_hand(endpoint, tmp_path)
    with pytest.raises(WorkFailed, match="401"):
        client.run(batches.submit(calls))
    _, later, _ = by_hand(endpoint, tmp_path)
    assert "4 replies" in client.run(later.collect())


def test_the_reply_to_a_call_that_was_set_aside_meanwhile_is_left(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.batches.states = ["completed"]
    client, batches, calls = by_hand(endpoint, tmp_path)
    client.run(batches.submit(calls[:2]))
    client.journal.reject(calls[0].asked, calls[0].chat, "it said no")
    assert "1 replies kept, 1 calls" in client.run(batches.collect())


def test_a_batch_that_might_pass_the_limit_is_not_submitted(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match="--max-cost"):
        generate(recipe(endpoint), tmp_path, spending=Spending(max_cost=0.001, batch="submit"))
    assert endpoint.batches.seen == []


@pytest.mark.parametrize("data", [{"trajectory": "teacher"}, {"teacher": "expert", "trajectory": "teacher"}])
def test_a_teacher_that_plays_or_is_no_model_has_no_batch_mode(
    endpoint: ScriptedEndpoint, tmp_path: Path, data: dict[str, object]
) -> None:
    with pytest.raises(InvalidInput, match="openai and oracle"):
        run(endpoint, tmp_path, "submit", **data)
    assert endpoint.batches.seen == endpoint.requests == []


def test_a_list_of_batches_that_is_none_is_refused(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    run(endpoint, tmp_path, "submit")
    (tmp_path / "calls" / "teacher" / OPEN_BATCHES).write_text('{"a": 1}')
    with pytest.raises(InvalidInput, match=r"batches.json"):
        run(endpoint, tmp_path, "collect")
