"""Requests to a server of an agent, and a server inside the test's process."""

from __future__ import annotations

from collections.abc import Sequence

import httpx2
from fastapi.testclient import TestClient

from reflectrl.pipeline.agent import Agent
from reflectrl.serving.bounds import Bounds
from reflectrl.serving.server import make_app

KEY = "sk-of-the-test"
STATE = {"observation": "Number 2, target 6.", "actions": ["add one", "subtract one"]}
CHAT = {"model": "reflector", "messages": [{"role": "user", "content": "Number 2, target 6.\nReflection:"}]}


def in_process(agent: Agent, bounds: Bounds | None = None, hosts: Sequence[str] = ()) -> TestClient:
    """Return a client of the same application in this process, where tests can delay players."""
    app = make_app(agent, bounds or Bounds(), hosts=hosts)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    """Return the status and the sentence of an error in OpenAI's format."""
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "code"}
    assert answer.json()["error"]["message"].endswith(".")
    return answer.status_code, answer.json()["error"]["message"]
