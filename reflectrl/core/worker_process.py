"""``WorkerProcess``: a process that hosts environments, asked through a pipe, and ended when it breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.core.hosting import Answer, Raised, Refused, Request

GRACE_S = 5.0
"""A process that is no longer needed may take so long to close its environments."""

_PROGRAM = "import sys; sys.path[:] = sys.argv[2:]; from reflectrl.core.hosting import serve; serve(int(sys.argv[1]))"
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Broken(Exception):
    """A call failed; says what the environment did: ``died of SIGKILL``."""


class WorkerProcess:
    """A process that hosts environments, and the pipe to it; it runs from the first request on, and again after a kill.

    It is a new program rather than a fork, because a fork would copy torch's threads in the middle of their work.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """To be held from ``start`` to the answers: one request is in the pipe at a time."""
        self.hosted = 0
        """Environments that are open."""
        self.closed = False
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection

    def start(self) -> int:
        """Have a process, and say the how-manieth it is: what an earlier one hosted is gone."""
        if self.closed:
            raise InvalidInput("an environment was used after its worker processes were closed; make a new one.")
        if self._process is None:
            self._pipe, theirs = Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **_ONE_THREAD},
                    pass_fds=[theirs.fileno()],
                    process_group=0,
                )
            self._starts += 1
        return self._starts

    def ask(self, request: Request, deadline_s: float) -> Any:
        """The answer to ``request``.

        Raises:
            InvalidInput: the environment refused it.
            Broken: the environment raised something else, or the process died, or stalled and was killed.

        """
        try:
            self._pipe.send(request)
            reply = self._pipe.recv() if self._pipe.poll(deadline_s) else None
        except (EOFError, OSError):
            status = self._kill()
            how = f"with exit code {status}" if status >= 0 else f"of {signal.Signals(-status).name}"
            raise Broken(f"died {how}") from None
        except BaseException:  # an answer that nobody waits for must not meet the next request
            self._kill()
            raise
        match reply:
            case Answer(value=value):
                return value
            case Refused(sentence=sentence):
                raise InvalidInput(sentence)
            case Raised(what=what):
                raise Broken(what)
        self._kill()
        raise Broken(f"stalled for more than {deadline_s:g} s")

    def stop(self) -> None:
        """End the process, if there is one; it closes its environments."""
        with self.lock:
            if self._process is None:
                return
            self._pipe.close()
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
        self._pipe.close()
        process.stdin.close()
        return process
