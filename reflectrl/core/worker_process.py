"""``WorkerProcess``: a process that hosts environments, asked through pipes, and ended when it breaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reflectrl.core.errors import InvalidInput, WorkFailed
from reflectrl.core.hosting import Answer, Numbered, Raised, Refused

GRACE_S = 5.0
"""A process that is no longer needed may take so long to close its environments."""
WATCH_S = 0.2
"""How often memory is looked at, where it is limited."""
_MB = 10**6

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

    def __init__(self, most_mb: int | None = None) -> None:
        self.most_mb = most_mb
        """Memory at which the process is ended."""
        self.lock = threading.Lock()
        """To be held from ``start`` to the answers: the requests of one caller are under way at a time."""
        self.hosted = 0
        """Environments that are open."""
        self.closed = False
        self.life = 1
        """Goes up whenever the process ends: what was hosted in an earlier life is gone."""
        self.awaited = 0
        """Answers that are still to come."""
        self.since = 0.0
        """When somebody began to wait for the next of them."""
        self._looked = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Connection
        self.replies: Connection
        """Where answers come from, once it has been started."""

    def start(self) -> None:
        """Have a process that nothing is awaited of."""
        if self.closed:
            raise InvalidInput("an environment was used after its worker processes were closed; make a new one.")
        if self.awaited:  # somebody was interrupted, and what nobody waits for must not meet the next request
            self._kill()
        if self._process is None:
            requests, self._requests = Pipe(duplex=False)
            self.replies, replies = Pipe(duplex=False)
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
        """Ask for as many answers, to be received one by one in this order.

        Raises:
            WorkFailed: the requests cannot travel.

        """
        try:
            self._requests.send(requests)
        except OSError:
            pass  # it is dead: whoever receives will hear of it
        except Exception as error:  # whatever pickle says, before any of them has left
            raise WorkFailed(
                f"a request cannot be sent to a worker process: {error}; expected plain values in the options of an "
                "environment and of its tasks."
            ) from error
        self.awaited = len(requests)

    def receive(self, deadline_s: float) -> Any:
        """The next answer.

        Raises:
            InvalidInput: the environment refused it.
            Broken: the environment raised something else, or the process died, or stalled or grew and was killed.

        """
        self.since = time.monotonic()
        while not self.replies.poll(self.patience(deadline_s)):
            self.check(deadline_s)
        return self.read()

    def patience(self, deadline_s: float) -> float:
        """Seconds to wait for an answer before ``check`` is called."""
        left = max(self.since + deadline_s - time.monotonic(), 0.0)
        return left if self.most_mb is None else min(left, WATCH_S)

    def check(self, deadline_s: float) -> None:
        """There is no answer yet.

        Raises:
            Broken: it took too long, or too much memory.

        """
        if time.monotonic() - self.since >= deadline_s:
            self._kill()
            raise Broken(f"stalled for more than {deadline_s:g} s")
        self._weigh()

    def read(self) -> Any:
        """The next answer, which is there; raises what ``receive`` does."""
        try:
            reply = self.replies.recv()
        except (EOFError, OSError):
            status = self._kill()
            raise Broken(f"died {_how(status)}") from None
        except Exception as error:  # what unpickling comes upon
            self._kill()
            raise Broken(f"sent what cannot be read: {error}") from error
        self.awaited -= 1
        self.since = time.monotonic()
        self._weigh()
        match reply:
            case Answer(value=value):
                return value
            case Refused(sentence=sentence):
                raise InvalidInput(sentence)
            case Raised(what=what):
                raise Broken(what)
        self._kill()
        raise Broken("sent what is no answer")

    def ask(self, request: Numbered, deadline_s: float) -> Any:
        """The answer to a single request; raises what ``receive`` does."""
        self.send([request])
        return self.receive(deadline_s)

    @property
    def memory_mb(self) -> float:
        """Resident memory, without that of other programs it has started; 0 without a process."""
        if self._process is None:
            return 0.0
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):  # it is dead
            return 0.0
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / _MB

    def stop(self) -> None:
        """End the process, if there is one; it closes its environments."""
        with self.lock:
            self.end()

    def end(self) -> None:
        """``stop`` for who holds the lock: nothing that the environments have started is left behind."""
        if self._process is None:
            return
        if not self.awaited:
            self._requests.close()
            self._wait()
        self._kill()

    def _wait(self) -> None:
        """Until it has ended, but not until it is gone: its number must stay its own, and that of its group."""
        end, pid = time.monotonic() + GRACE_S, 0 if self._process is None else self._process.pid
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < end:
            time.sleep(0.002)

    def _weigh(self) -> None:
        if self.most_mb is None or time.monotonic() - self._looked < WATCH_S:
            return
        self._looked = time.monotonic()
        if (memory_mb := self.memory_mb) > self.most_mb:
            self._kill()
            raise Broken(f"used {memory_mb:,.0f} MB of memory, more than {self.most_mb:,}")

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
        self.replies.close()
        process.stdin.close()
        self.life += 1
        self.awaited = 0
        return process


def _how(status: int) -> str:
    if status >= 0:
        return f"with exit code {status}"
    try:
        return f"of {signal.Signals(-status).name}"
    except ValueError:  # one of those without a name
        return f"of signal {-status}"
