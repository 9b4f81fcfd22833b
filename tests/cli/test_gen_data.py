"""gen-data with a chat model: its estimate, its cost, its limit, and its interruption."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from command_line import Done, reflectrl
from scripted_endpoint import Chat, ScriptedEndpoint, replies_in
from warm_processes import WarmProcess, command_line

KEY = "sk-not-for-any-file"


@pytest.fixture(autouse=True)
def _key(endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - which takes it away
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def command(endpoint: ScriptedEndpoint, runs: Path, *more: str) -> list[str]:
    overrides = [
        "data.teacher=openai",
        "data.samples=20",
        "data.concurrency=1",
        f"data.endpoint.base_url={endpoint.url}",
        "data.endpoint.price={prompt: 1.0, completion: 1.0}",
        "data.endpoint.max_tokens=50",
    ]
    return ["gen-data", "--recipe", "number_line/nano", "--runs", str(runs), "--run", "run", *overrides, *more]


def gen_data(endpoint: ScriptedEndpoint, runs: Path, *more: str) -> Done:
    return reflectrl(*command(endpoint, runs, *more))


def kept(runs: Path) -> int:
    return len(replies_in(runs / "run" / "calls" / "teacher"))


def test_settings_with_which_no_reply_came_can_be_corrected(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.faults.extend(["404"] * 100)
    wrong = gen_data(endpoint, tmp_path, "data.endpoint.model=wrong", "data.samples=10")
    assert (wrong.code, "data.endpoint.model" in wrong.err or "endpoint.model" in wrong.err) == (1, True)
    endpoint.faults.clear()
    right = gen_data(endpoint, tmp_path, "data.endpoint.model=gpt-4o", "data.samples=10")
    assert right.code == 0, right.err
    later = gen_data(endpoint, tmp_path, "data.endpoint.model=other", "data.samples=10")
    assert (later.code, "begun with other inputs" in later.err) == (2, True)


@pytest.mark.slow
def test_a_dry_run_asks_nothing_and_a_cost_limit_holds(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    dry = gen_data(endpoint, tmp_path, "--dry-run")
    assert dry.code == 0
    assert re.search(r"estimate: .* \d+ calls to model 'gpt-4o' at .* 0\.\d\d dollars", dry.err)
    both = gen_data(endpoint, tmp_path, "--dry-run", "--batch", "submit")
    assert (both.code, "leave one out" in both.err) == (2, True)
    assert (endpoint.requests, "done" in dry.err, (tmp_path / "run").exists()) == ([], False, False)
    poor = gen_data(endpoint, tmp_path, "data.samples=100", "--max-cost", "0.0012")
    assert poor.code == 1
    assert "--max-cost" in poor.err
    assert 0 < kept(tmp_path) == len(endpoint.requests)
    assert len(endpoint.requests) * 12e-6 <= 0.0012
    done = gen_data(endpoint, tmp_path, "data.samples=100", "--max-cost", "1")
    assert done.code == 0
    assert re.search(r"calls +\d+ sent.* known; .* tokens .* dollars", done.err)
    chats = [str(request.chat) for request in endpoint.requests]
    assert len(chats) == len(set(chats))


@pytest.mark.slow
def test_a_stopped_run_keeps_its_paid_replies(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    few = "data.samples=8"
    assert gen_data(endpoint, tmp_path / "whole", few).code == 0
    whole = len(endpoint.requests)
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        runs = tmp_path / number.name
        endpoint.requests.clear()
        endpoint.reply = slow
        child = WarmProcess(tmp_path / "log", command_line, *command(endpoint, runs, few))
        while len(endpoint.requests) < 3:
            assert child.poll() is None, child.said
            time.sleep(0.02)
        child.send_signal(number)
        assert child.wait() == code
        assert f"{runs}/run. The same command" in child.said
        assert "Traceback" not in child.said
        assert kept(runs) == len(endpoint.requests)
        endpoint.reply = lambda chat: "fine"  # noqa: ARG005
        assert gen_data(endpoint, runs, few).code == 0
        assert len(endpoint.requests) == whole
        for name in ("data", "sft"):
            for path in (runs / "run" / name).iterdir():
                assert path.read_bytes() == (tmp_path / "whole" / "run" / name / path.name).read_bytes()


def slow(chat: Chat) -> str:  # noqa: ARG001
    time.sleep(0.1)
    return "fine"


def test_the_key_is_in_no_file(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.faults.extend(["none"] * 5 + ["echo-key"])
    done = gen_data(endpoint, tmp_path)
    assert done.code == 1
    assert "401" in done.err
    assert KEY not in done.err + done.out
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)
