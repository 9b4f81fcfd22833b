"""Real processes that start quickly, because they are forked from one that has imported torch, TRL and the like.

These imports take fifteen seconds. Tests that need a process for its signals, its exit code or its environment
variables start it here; tests of how a process starts use ``subprocess``.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["reflectrl.cli.app", *(f"reflectrl.pipeline.{stage}" for stage in ("sft_stage", "rlft_stage", "evaluate"))]
)


def command_line(*arguments: str) -> None:
    """Run ``reflectrl`` with ``arguments``, as the console script does."""
    from reflectrl.cli import main

    sys.argv = ["reflectrl", *arguments]
    main()


def command_line_of_rank(*arguments: str) -> None:
    """Run ``reflectrl`` with ``arguments`` and a seed that each process of a launch has for itself."""
    command_line(*arguments, f"seed={os.environ['RANK']}")


class WarmProcess:
    """A process that calls ``target(*arguments)`` in a new session; ``said`` is all that it has written.

    ``target`` is a function of a helper module such as this one, since a test module cannot be imported by its name.
    ``log`` is the file for its output, which is emptied unless it should ``append``; ``env`` is added to this process's
    environment variables, where a value of None removes a variable.
    """

    _ONE_AT_A_TIME = threading.Lock()
    """Each start of a process reads which others have ended, and what tells it can be read once."""

    def __init__(
        self,
        log: Path,
        target: Callable[..., object],
        *arguments: Any,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
        append: bool = False,
    ) -> None:
        self.log = log
        log.open("a" if append else "w").close()
        environment = {name: value for name, value in {**os.environ, **(env or {})}.items() if value is not None}
        given = (log, target, arguments, cwd or Path.cwd(), environment)
        self._process = _CONTEXT.Process(target=_live, args=given)
        with self._ONE_AT_A_TIME:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def poll(self) -> int | None:
        with self._ONE_AT_A_TIME:
            return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self.wait()

    def wait(self, timeout: float = 900) -> int:
        """Wait for the process, and return its exit code, which is negative after a signal."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            assert time.monotonic() < deadline, f"still at work after {timeout} s: {self.said}"
            time.sleep(0.01)
        return code


def run_command(log: Path, *arguments: str, **options: Any) -> WarmProcess:
    """Run ``reflectrl`` with ``arguments`` to its end."""
    process = WarmProcess(log, command_line, *arguments, **options)
    process.wait()
    return process


def start_ranks(folder: Path, target: Callable[..., object], *arguments: Any, ranks: int = 2) -> list[WarmProcess]:
    """Start the processes that ``torchrun --nproc_per_node`` would start, without the launcher."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
    started = []
    for rank in range(ranks):
        env = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_PORT": port}
        started.append(WarmProcess(folder / f"rank{rank}.log", target, *arguments, env=env))
    return started


def _live(log: Path, target: Callable[..., object], arguments: tuple[Any, ...], cwd: Path, env: dict[str, str]) -> None:
    """Run ``target`` in the new process, which ends as a Python program does, but without its parent's exit hooks."""
    os.setsid()
    gc.freeze()  # what the parent imported is neither searched nor copied
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.executable = env.get("WARM_PYTHON", sys.executable)
    said = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code: Any = 0
    try:
        target(*arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
