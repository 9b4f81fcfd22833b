from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from scripted_endpoint import ScriptedEndpoint
from trained_runs import TrainedRuns

# A shell's background job ignores it, as would every process that a test starts and then interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the hub; read when huggingface_hub is imported


@pytest.fixture(scope="session", autouse=True)
def _cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is kept between processes, such as translated games, goes to a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEndpoint]:
    """A chat endpoint of one's own, with no key and no proxy in the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    gc.freeze()  # or the collection below looks through all of torch, which takes half a second
    with ScriptedEndpoint() as scripted:
        yield scripted
        gc.collect()  # clients of tests that kept an exception hang up now, and not in the middle of anything else
    gc.unfreeze()


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedRuns]:
    """Small runs that are trained once in a test session; how to ask for one is in ``TrainedRuns``."""
    folder = tmp_path_factory.getbasetemp()
    runs = TrainedRuns((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "trained")
    yield runs
    runs.check()
