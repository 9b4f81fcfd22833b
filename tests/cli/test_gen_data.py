"""gen-data with a chat model, as a user runs it: what it may cost, what it costs, and how it is stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_endpoint import Chat, ScriptedEndpoint

KEY = "sk-not-for-any-file"


def command(endpoint: ScriptedEndpoint, runs: Path, *more: str) -> list[str]:
    overrides = [
        "data.teacher=openai",
        "data.samples=20",
        "data.concurrency=1",
        f"data.endpoint.base_url={endpoint.url}",
        "data.endpoint.price={prompt: 1.0, completion: 1.0}",
        "data.endpoint.max_tokens=50",
    ]
    start = [sys.executable, "-m", "reflectrl", "gen-data", "--recipe", "number_line/nano", "--runs", str(runs)]
    return [*start, "--run", "run", *overrides, *more]


def gen_data(endpoint: ScriptedEndpoint, runs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    told = command(endpoint, runs, *more)
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert "Traceback" not in done.stderr
    return done


def kept(runs: Path) -> int:
    return len((runs / "run" / "calls" / "teacher" / "replies.jsonl").read_text().splitlines())


def test_a_dry_run_says_what_it_may_cost_and_asks_nothing(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    done = gen_data(endpoint, tmp_path, "--dry-run")
    assert done.returncode == 0
    assert re.search(r"estimate: about \d+ calls to model 'gpt-4o' at .*: about 0\.\d\d dollars", done.stderr)
    assert "done" not in done.stderr
    assert endpoint.requests == []


def test_money_is_counted_and_its_limit_kept(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    poor = gen_data(endpoint, tmp_path, "data.samples=100", "--max-cost", "0.0012")
    assert poor.returncode == 1
    assert "allow more with --max-cost, and the same command goes on" in poor.stderr
    assert 0 < kept(tmp_path) == len(endpoint.requests)
    assert len(endpoint.requests) * 12e-6 <= 0.0012
    done = gen_data(endpoint, tmp_path, "data.samples=100", "--max-cost", "1")
    assert done.returncode == 0
    assert re.search(r"calls +\d+ sent.* known; .* tokens sent and .* answered; .* dollars, .* in all", done.stderr)
    chats = [str(request.chat) for request in endpoint.requests]
    assert len(chats) == len(set(chats))


def test_a_limit_without_a_price_is_refused_before_work(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    done = gen_data(endpoint, tmp_path, "--max-cost", "1", "data.endpoint.price=null")
    assert (done.returncode, endpoint.requests) == (2, [])
    assert "data.endpoint.price" in done.stderr


def test_a_server_of_one_s_own_costs_nothing_whatever_the_recipe_was_priced_for(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    dear = tmp_path / "dear.yaml"
    dear.write_text(
        "extends: number_line/nano\nname: run\ndata:\n  teacher: openai\n  samples: 4\n"
        "  endpoint: {model: theirs, price: {prompt: 1000000, completion: 1000000}}\n"
    )
    told = [sys.executable, "-m", "reflectrl", "gen-data", "--recipe", str(dear), "--runs", str(tmp_path)]
    told += ["--max-cost", "0.01", f"data.endpoint.base_url={endpoint.url}"]
    done = subprocess.run(told, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    note = f"the price in data.endpoint is that of model 'theirs' at OpenAI, not of model 'theirs' at {endpoint.url}"
    assert done.stderr.startswith(f"note: {note}, whose calls count as free")
    assert "about 0.00 dollars" in done.stderr
    assert endpoint.requests


def test_certificates_that_are_not_there_are_refused_before_work(
    endpoint: ScriptedEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "missing.pem")
    done = gen_data(endpoint, tmp_path)
    assert (done.returncode, endpoint.requests) == (2, [])
    assert done.stderr.startswith("error: no connection can be set up with the environment variables ")


def test_a_stopped_run_keeps_what_is_paid_for_and_says_how_to_go_on(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    asked = gen_data(endpoint, tmp_path / "whole")
    assert asked.returncode == 0
    whole = len(endpoint.requests)
    endpoint.requests.clear()

    def slow(chat: Chat) -> str:  # noqa: ARG001
        time.sleep(0.2)
        return "fine"

    endpoint.reply = slow
    told = command(endpoint, tmp_path)
    environment = {**os.environ, "OPENAI_API_KEY": KEY}
    with subprocess.Popen(told, stderr=subprocess.PIPE, text=True, env=environment) as child:
        while len(endpoint.requests) < 3:
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        _, said = child.communicate(timeout=300)
    assert child.returncode == 143
    assert "The same command goes on from there." in said
    assert "Traceback" not in said
    assert kept(tmp_path) == len(endpoint.requests)
    endpoint.reply = lambda chat: "fine"  # noqa: ARG005
    assert gen_data(endpoint, tmp_path).returncode == 0
    assert len(endpoint.requests) == whole
    for name in ("data", "sft"):
        for path in (tmp_path / "run" / name).iterdir():
            assert path.read_bytes() == (tmp_path / "whole" / "run" / name / path.name).read_bytes()


def test_the_key_is_in_no_file(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.faults.extend(["none"] * 5 + ["echo-key"])
    done = gen_data(endpoint, tmp_path)
    assert done.returncode == 1
    assert "key was refused" in done.stderr
    assert KEY not in done.stderr + done.stdout
    assert endpoint.requests[0].headers["authorization"] == f"Bearer {KEY}"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)
