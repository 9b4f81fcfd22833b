"""``WorkerProcess``: a process that hosts environments, asked through pipes, and ended when it breaks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.hosting import Answer, Numbered, Raised, Refused

GRACE_S = 5.0
"""A process that is no longer needed may take so long to close its environments."""

_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from reflectrl.core.hosting import serve
serve(int(sys.argv[1]), int(sys.argv[2]))
"""
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Broken(Exception):
    """A call failed; says what the environment did: ``died of SIGKILL``."""


class WorkerProcess:
    """A process that hosts environments, and its pipes; it runs from the first request on, and again after a kill.

    There is a pipe each way, because the two ends of one for both ways would wake each other whenever they read.
    It is a new program rather than a fork, because a fork would copy torch's threads in the middle of their work.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """To be held from ``start`` to the answers: the requests of one caller are under way at a time."""
        self.hosted = 0
        """Environments that are open."""
        self.closed = False
        self.life = 1
        """Goes up whenever the process ends: what was hosted in an earlier life is gone."""
        self.awaited = 0
        """Answers that are still to come."""
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Connection
        self._replies: Connection

    def start(self) -> None:
        """Have a process that nothing is awaited of."""
        if self.closed:
            raise InvalidInput("an environment was used after its worker processes were closed; make a new one.")
        if self.awaited:  # somebody was interrupted, and what nobody waits for must not meet the next request
            self._kill()
        if self._process is None:
            requests, self._requests = Pipe(duplex=False)
            self._replies, replies = Pipe(duplex=False)
            with requests, replies:
                handles = requests.fileno(), replies.fileno()
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *map(str, handles), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **_ONE_THREAD},
                    pass_fds=handles,
                    process_group=0,
                )

    def send(self, requests: Sequence[Numbered]) -> None:
        """Ask for as many answers, to be received one by one in this order."""
        self.awaited = len(requests)
        with contextlib.suppress(OSError):  # it is dead: whoever receives will hear of it
            self._requests.send(requests)

    def receive(self, deadline_s: float) -> Any:
        """The next answer.

        Raises:
            InvalidInput: the environment refused it.
            Broken: the environment raised something else, or the process died, or stalled and was killed.

        """
        try:
            reply = self._replies.recv() if self._replies.poll(deadline_s) else None
        except (EOFError, OSError):
            status = self._kill()
            how = f"with exit code {status}" if status >= 0 else f"of {signal.Signals(-status).name}"
            raise Broken(f"died {how}") from None
        self.awaited -= 1
        match reply:
            case Answer(value=value):
                return value
            case Refused(sentence=sentence):
                raise InvalidInput(sentence)
            case Raised(what=what):
                raise Broken(what)
        self._kill()
        raise Broken(f"stalled for more than {deadline_s:g} s")

    def ask(self, request: Numbered, deadline_s: float) -> Any:
        """The answer to a single request; raises what ``receive`` does."""
        self.send([request])
        return self.receive(deadline_s)

    def stop(self) -> None:
        """End the process, if there is one; it closes its environments."""
        with self.lock:
            if self._process is None:
                return
            if self.awaited:
                self._kill()
                return
            self._requests.close()
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                self._kill()
            else:
                self._forget()

    def _kill(self) -> int:
        """End the process and those that it started; returns its exit status."""
        process = self._forget()
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so its number is still its own
        return process.wait()

    def _forget(self) -> subprocess.Popen[bytes]:
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            raise RuntimeError("a worker without a process was ended")
        self._requests.close()
        self._replies.close()
        process.stdin.close()
        self.life += 1
        self.awaited = 0
        return process
