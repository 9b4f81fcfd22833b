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
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from reflectrl.core.errors import InvalidInput, WorkFailed
from reflectrl.workers.protocol import REPLIES, Raised, Refused, Reply, Request, encode_line

CLOSE_GRACE_S = 5.0
"""Time that a process has to close its environments when it is no longer needed."""
MEMORY_CHECK_INTERVAL_S = 0.2
MAX_REPLY_BYTES = 64 * 2**20
"""An observation has a million characters at most."""
_READ_BYTES = 2**16
_BYTES_PER_MB = 10**6

_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from reflectrl.workers.host import serve
serve(int(sys.argv[1]), int(sys.argv[2]))
"""
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class Broken(Exception):
    """A request failed with its environment; the message says how: ``died of SIGKILL``."""


@dataclass(eq=False)
class Call:
    """A request to one environment of a process, and the reply once it has come."""

    number: int
    """The environment's number, unique among those of its process."""
    request: Request
    reply: Reply | None = None
    """``None`` until it comes, and for good if the process ends because of another call: the request is sent again."""

    def answer(self) -> Any:
        """Return the answer, which has come.

        Raises:
            InvalidInput: the environment refused.
            Broken: it failed.

        """
        match self.reply:
            case Refused(sentence=sentence):
                raise InvalidInput(sentence)
            case Raised(what=what):
                raise Broken(what)
        return self.reply and self.reply.value


class WorkerProcess:
    """A process that hosts environments, and its pipes; it runs from the first request on, and again after a kill.

    There is a pipe each way, because the two ends of one for both ways would wake each other whenever they read.
    It is a new program rather than a fork, because a fork would copy torch's threads in the middle of their work.

    Args:
        max_memory_mb: resident memory at which the process is ended, a failure; ``None`` for any.

    """

    def __init__(self, max_memory_mb: int | None = None) -> None:
        self.max_memory_mb = max_memory_mb
        self.lock = threading.Lock()
        """Held while requests are sent and replies awaited, so that callers do so one after the other."""
        self.hosted = 0
        """Number of open environments."""
        self.closed = False
        self.life = 1
        """Goes up whenever the process ends: environments of an earlier life are gone."""
        self._episodes = 0  # begun in this life
        self._pending: deque[Call] = deque()
        self._waiting_since = self._weighed_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: FileIO
        self._replies: FileIO
        self._unfinished = bytearray()

    @property
    def busy(self) -> bool:
        """True while replies are pending."""
        return bool(self._pending)

    def start(self) -> None:
        """Start the process if there is none.

        Raises:
            InvalidInput: its pool was closed.

        """
        if self.closed:
            raise InvalidInput("an environment was used after its worker processes were closed; make a new one.")
        if self._process is not None:
            return
        self._unfinished = bytearray()
        requests, ours = os.pipe()
        self._requests = FileIO(ours, "w")
        ours, replies = os.pipe()
        os.set_blocking(ours, False)
        self._replies = FileIO(ours, "r")
        with FileIO(requests), FileIO(replies, "w"):
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(requests), str(replies), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **_ONE_THREAD},
                pass_fds=(requests, replies),
                process_group=0,
            )

    def send(self, calls: Sequence[Call]) -> None:
        """Send requests in one message to a process that is not busy; ``progress`` brings the replies."""
        rest = memoryview(encode_line([(call.number, call.request) for call in calls]))
        self._pending.extend(calls)
        self.restart_clock()
        try:
            while rest:
                rest = rest[self._requests.write(rest) :]
        except OSError:
            pass  # it is dead, which is seen when its replies are awaited
        except BaseException:  # interrupted, with half of the message sent
            self.kill()
            raise

    def ask(self, number: int, request: Request, deadline_s: float) -> Any:
        """Send a single request to a process that is not busy, and wait for the answer; raises as ``answer`` does."""
        call = Call(number, request)
        self.send([call])
        while self.busy:
            progress([self], deadline_s)
        return call.answer()

    def restart_clock(self) -> None:
        """Count the deadline of the next reply from now on."""
        self._waiting_since = time.monotonic()

    def patience_s(self, deadline_s: float) -> float:
        """Seconds to wait for a reply before the deadline or the memory has to be checked."""
        left_s = max(self._waiting_since + deadline_s - time.monotonic(), 0.0)
        return left_s if self.max_memory_mb is None else min(left_s, MEMORY_CHECK_INTERVAL_S)

    def read(self) -> None:
        """Take in what the process has sent; the pipe is known to be readable."""
        chunk = self._replies.read(_READ_BYTES)
        if chunk is None:
            return
        if not chunk:
            self._fail("died")
            return
        first, *others = chunk.split(b"\n")
        self._unfinished += first
        for other in others:
            line, self._unfinished = bytes(self._unfinished), bytearray(other)
            if self._process is not None:  # else an earlier line was the last straw
                self._take(line)
        if len(self._unfinished) > MAX_REPLY_BYTES:
            self._fail(f"sent a message of more than {MAX_REPLY_BYTES:,} bytes")

    def check(self, deadline_s: float) -> None:
        """End the process if its next reply is late, or its memory too large."""
        if time.monotonic() - self._waiting_since >= deadline_s:
            self._fail(f"stalled for more than {deadline_s:g} s")
        else:
            self._fits_memory()

    @property
    def memory_mb(self) -> float:
        """Resident memory, without that of other programs it has started; 0 without a process."""
        if self._process is None:
            return 0.0
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        except (OSError, IndexError):  # it is dead
            return 0.0
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / _BYTES_PER_MB

    def recycle(self, max_memory_mb: int | None, episodes: int) -> bool:
        """End the process if it has grown too large before ``episodes`` begin; returns whether it was.

        Raises:
            WorkFailed: one episode of each environment was too much for it, so a fresh one would not last either.

        """
        if not episodes or max_memory_mb is None:
            return False
        memory_mb, begun = self.memory_mb, self._episodes
        if recycled := memory_mb > max_memory_mb:
            if begun < self.hosted:
                raise WorkFailed(
                    f"a worker process uses {memory_mb:,.0f} MB of memory after {begun} episodes of {self.hosted} "
                    f"environments; max_memory_mb is {max_memory_mb:,}: raise it, or raise workers."
                )
            self.stop()
        self._episodes += episodes
        return recycled

    def stop(self) -> None:
        """End the process, if there is one; unless it is busy, it closes its environments first."""
        if self._process is not None and not self.busy:
            self._requests.close()
            # until it has ended, but not until it is gone: its number, and that of its group, must stay its own
            end, pid = time.monotonic() + CLOSE_GRACE_S, self._process.pid
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None and time.monotonic() < end:
                time.sleep(0.002)
        self.kill()

    def kill(self) -> int:
        """End the process, if there is one, and those that it started; returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (self._requests, self._replies, process.stdin):
            if pipe is not None:
                pipe.close()
        os.killpg(process.pid, signal.SIGKILL)  # not waited for yet, so its number is still its own
        status = process.wait()
        self.life += 1
        self._episodes = 0
        self._pending.clear()
        return status

    def _take(self, line: bytes) -> None:
        if not self._pending or not self._fits_memory():
            return
        try:
            self._pending[0].reply = REPLIES[type(self._pending[0].request)].decode(line)
        except (ValueError, RecursionError) as error:
            self._fail(f"sent what cannot be read: {error}")
        else:
            self._pending.popleft()
            self.restart_clock()

    def _fits_memory(self) -> bool:
        if self.max_memory_mb is None or time.monotonic() - self._weighed_at < MEMORY_CHECK_INTERVAL_S:
            return True
        self._weighed_at = time.monotonic()
        memory_mb = self.memory_mb
        if memory_mb > self.max_memory_mb:
            self._fail(f"used {memory_mb:,.0f} MB of memory, more than {self.max_memory_mb:,}")
            return False
        return True

    def _fail(self, how: str) -> None:
        """End the process, and blame the request that was under way."""
        blamed = self._pending.popleft() if self._pending else None
        status = self.kill()
        if blamed is not None:
            blamed.reply = Raised(f"died {_cause(status)}" if how == "died" else how)


def progress(processes: Sequence[WorkerProcess], deadline_s: float) -> None:
    """Wait for busy processes until one of them has sent something or is late, and take in what is there."""
    poll, by_handle = select.poll(), {process._replies.fileno(): process for process in processes}
    for handle in by_handle:
        poll.register(handle, select.POLLIN)
    try:
        patience_s = min(process.patience_s(deadline_s) for process in processes)
        readable = {handle for handle, _ in poll.poll(math.ceil(patience_s * 1000))}
        for handle, process in by_handle.items():
            if handle in readable:
                process.read()
            else:
                process.check(deadline_s)
    except BaseException:  # interrupted: a reply may be half taken in, and a stalled process is not to be waited for
        for process in processes:
            process.kill()
        raise


def _cause(status: int) -> str:
    """Describe the end of a process by its exit status."""
    if status >= 0:
        return f"with exit code {status}"
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"of {signal.Signals(-status).name}"
    return f"of signal {-status}"
