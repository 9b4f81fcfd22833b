from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from scripted_endpoint import ScriptedEndpoint
from trained_runs import TrainedRuns
from warm_python import warm_python

# A background job of a shell ignores SIGINT, and so would every process that a test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test needs the hub; huggingface_hub reads this when it is imported


def pytest_collection_finish() -> None:
    """Leave what was imported out of later garbage collections: each training runs one, else through all of torch."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have caches between processes, such as translated games, in a folder of the tests, no key, no proxy to a server
    of the tests, and no certificates, since reading those of the system takes each client as long as a short test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("certificates")))
        patch.setenv("NO_PROXY", f"{os.environ.get('NO_PROXY', '')},127.0.0.1".strip(","))
        patch.delenv("OPENAI_API_KEY", raising=False)
        yield


@pytest.fixture(autouse=True)
def _forgotten_modules(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forget what a test imported from its own folder: the next one may write a module of the same name."""
    yield
    if (folder := request.node.funcargs.get("tmp_path")) is not None:
        for name, module in [*sys.modules.items()]:
            if (getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    """A new chat endpoint."""
    with ScriptedEndpoint() as scripted:
        yield scripted
        gc.collect()  # clients that a stored exception kept alive hang up now, and not during another test


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainedRuns]:
    """Small runs that are trained once per test session; see ``TrainedRuns`` for its use."""
    folder = tmp_path_factory.getbasetemp()
    runs = TrainedRuns((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "trained")
    yield runs
    runs.check()


@pytest.fixture
def _warm_runs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the processes of sweeps, searches and claims begin without their imports."""
    with warm_python(tmp_path_factory.mktemp("python")) as program:
        monkeypatch.setattr(sys, "executable", str(program))
        monkeypatch.setenv("WARM_PYTHON", str(program))
        yield
