from __future__ import annotations

from collections.abc import Iterator

import pytest
from scripted_endpoint import ScriptedEndpoint


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEndpoint]:
    """A chat endpoint of one's own, with no key and no proxy in the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ScriptedEndpoint() as scripted:
        yield scripted
