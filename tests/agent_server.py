"""Requests to a server of an agent, and a server inside the test's process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import httpx2
from fastapi.testclient import TestClient

from reflectrl.pipeline.agent import Agent
from reflectrl.share import Bounds
from reflectrl.share.server import make_app, serve

T = TypeVar("T")
KEY = "sk-of-the-test"
STATE = {"observation": "Number 2, target 6.", "actions": ["add one", "subtract one"]}


def in_process(agent: Agent, bounds: Bounds | None = None, hosts: Sequence[str] = ()) -> TestClient:
    """Return a client of the same application in this process, where tests can delay players."""
    app = make_app(agent, bounds or Bounds(), hosts=hosts)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def while_serving(run: Path, talk: Callable[[int], T], bounds: Bounds, key: str | None = None) -> T:
    """Serve ``run`` in this thread until ``talk``, called with the port in another one, returns; return its result."""
    talks: list[Future[T]] = []

    def talk_and_stop(port: int) -> T:
        try:
            return talk(port)
        finally:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    with ThreadPoolExecutor(1) as clients:
        serve(
            run,
            port=0,
            bounds=bounds,
            key=key,
            ready=lambda line: talks.append(clients.submit(talk_and_stop, int(line.rpartition(":")[2]))),
        )
        return talks[0].result()


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """Return the status and the sentence of an error."""
    sentence = answer.json()["detail"]
    assert answer.json() == {"detail": sentence, "error": {"message": sentence}}
    assert sentence.endswith(".")
    return answer.status_code, sentence
