"""``WorkerProcess``: a process that hosts environments, asked through pipes, and ended when it breaks."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from reflectrl.core.errors import InvalidInput
from reflectrl.workers.hosting import Answer, Numbered, Raised, Refused, Request, line_of_requests, read_reply, write

GRACE_S = 5.0
"""A process that is no longer needed may take so long to close its environments."""
WATCH_S = 0.2
"""How often memory is looked at, where it is limited."""
LONGEST = 64 * 2**20
"""Bytes of a reply; an observation has a million characters at most."""
_CHUNK = 2**16
_MB = 10**6

_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from reflectrl.workers.hosting import serve
serve(int(sys.argv[1]), int(sys.argv[2]))
"""
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Broken(Exception):
    """A call failed; says what the environment did: ``died of SIGKILL``."""


class _Lines:
    """What comes out of a pipe, line by line; nobody ever waits for the rest of a line."""

    def __init__(self, handle: int) -> None:
        os.set_blocking(handle, False)
        self._pipe = FileIO(handle, "r")
        self._whole: deque[bytes] = deque()
        self._begun = bytearray()
        self._ended = False
        self.fileno = self._pipe.fileno
        self.close = self._pipe.close

    def hear(self) -> None:
        """Take in what has come."""
        chunk = self._pipe.read(_CHUNK)
        if chunk is None:
            return
        self._ended = not chunk
        first, *others = chunk.split(b"\n")
        self._begun += first
        for other in others:
            self._whole.append(bytes(self._begun))
            self._begun = bytearray(other)

    @property
    def too_long(self) -> bool:
        """Whether the next line is longer than any may be."""
        return len(self._begun) > LONGEST and not self._whole

    @property
    def here(self) -> bool:
        """Whether the next line is there, or there will be none."""
        return bool(self._whole) or self._ended or self.too_long

    def pop(self) -> bytes | None:
        """The next line."""
        return self._whole.popleft() if self._whole else None


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
        self.awaited: deque[Request] = deque()
        """What is still to be answered."""
        self.since = 0.0
        """When somebody began to wait for the next of them."""
        self._looked = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: FileIO
        self._replies: _Lines

    def start(self) -> None:
        """Have a process that nothing is awaited of."""
        if self.closed:
            raise InvalidInput("an environment was used after its worker processes were closed; make a new one.")
        if self.awaited:  # somebody was interrupted, and what nobody waits for must not meet the next request
            self._kill()
        if self._process is None:
            requests, ours = os.pipe()
            self._requests = FileIO(ours, "w")
            ours, replies = os.pipe()
            self._replies = _Lines(ours)
            with FileIO(requests), FileIO(replies, "w"):
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(requests), str(replies), *sys.path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    env={**os.environ, **_ONE_THREAD},
                    pass_fds=(requests, replies),
                    process_group=0,
                )

    def send(self, requests: Sequence[Numbered]) -> None:
        """Ask for as many answers, to be received one by one in this order.

        Raises:
            InvalidInput: options that are not plain values.

        """
        line = line_of_requests(requests)
        self.awaited.extend(request for _, request in requests)
        with contextlib.suppress(OSError):  # it is dead: whoever receives will hear of it
            write(self._requests, line)

    def receive(self, deadline_s: float) -> Any:
        """The next answer.

        Raises:
            InvalidInput: the environment refused it.
            Broken: the environment raised something else, or the process died, or stalled or grew and was killed.

        """
        self.since = time.monotonic()
        while not self.heard:
            listen([self], self.patience(deadline_s))
            if not self.heard:
                self.check(deadline_s)
        return self.read()

    @property
    def heard(self) -> bool:
        """Whether the next answer is there, or there will be none."""
        return self._replies.here

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
        if self._replies.too_long:
            self._kill()
            raise Broken(f"sent a message of more than {LONGEST:,} bytes")
        line = self._replies.pop()
        if line is None:
            status = self._kill()
            raise Broken(f"died {_how(status)}")
        try:
            reply = read_reply(line, self.awaited[0])
        except (ValueError, RecursionError) as error:
            self._kill()
            raise Broken(f"sent what cannot be read: {error}") from error
        self.awaited.popleft()
        self.since = time.monotonic()
        self._weigh()
        match reply:
            case Answer(value=value):
                return value
            case Refused(sentence=sentence):
                raise InvalidInput(sentence)
            case Raised(what=what):
                raise Broken(what)

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
        self._replies.close()
        process.stdin.close()
        self.life += 1
        self.awaited.clear()
        return process


def listen(processes: Sequence[WorkerProcess], patience_s: float) -> None:
    """Take in what any of them says, waiting so long for the first, unless something is there already."""
    poll, lines = select.poll(), {process._replies.fileno(): process._replies for process in processes}
    for handle in lines:
        poll.register(handle, select.POLLIN)
    waits = 0 if any(process.heard for process in processes) else math.ceil(patience_s * 1000)
    for handle, _ in poll.poll(waits):
        lines[handle].hear()


def _how(status: int) -> str:
    if status >= 0:
        return f"with exit code {status}"
    try:
        return f"of {signal.Signals(-status).name}"
    except ValueError:  # one of those without a name
        return f"of signal {-status}"
