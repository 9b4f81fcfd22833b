"""A trained run, and a server of its agent in a process of its own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from agent_server import KEY
from hub_server import TOKEN
from huggingface_hub import constants
from trained_runs import TrainedRuns
from warm_processes import WarmProcess, command_line

from reflectrl.pipeline import STAGES
from reflectrl.pipeline.agent import Agent
from reflectrl.share.server import load_served_agent


@pytest.fixture(scope="package")
def run(trained_run: TrainedRuns) -> Path:
    return trained_run()


@pytest.fixture(scope="package")
def agent(run: Path) -> Agent:
    return load_served_agent(run)


@pytest.fixture(scope="package")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The line in which a running server says that it is ready; it must write nothing else until SIGINT ends it."""
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = ("serve", str(run), "--port", "0", "--api-key-env", "SERVE_KEY", "--max-body", "4000")
    process = WarmProcess(log, command_line, *arguments, env={"SERVE_KEY": KEY})
    try:
        while "\n" not in (ready := log.read_text() if log.exists() else ""):
            assert process.poll() is None, ready
            time.sleep(0.02)
        yield ready.strip()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.said == ready
    finally:
        if process.poll() is None:
            process.kill()


@pytest.fixture(scope="package")
def url(server: str) -> str:
    return server.rpartition(" ")[2]


@pytest.fixture(scope="package")
def client(url: str) -> Iterator[httpx2.Client]:
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx2.Client(base_url=url, timeout=300, trust_env=False, headers=headers) as client:
        yield client


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Allow this process to go online, with a token; huggingface_hub reads some variables when it is imported."""
    for name, value in (("OFFLINE", False), ("DISABLE_XET", True), ("DISABLE_PROGRESS_BARS", True)):
        monkeypatch.setattr(constants, f"HF_HUB_{name}", value)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return monkeypatch


@pytest.fixture
def json_policy(trained_run: TrainedRuns) -> Path:
    """A run whose policy writes two tokens of JSON, which are never a whole answer."""
    return trained_run(
        "prompt.action_mode=json",
        "sft.policy.label_smoothing=0",
        "players.reflector.player=none",
        "players.policy.max_new_tokens=2",
        stages=STAGES[:2],
    )
