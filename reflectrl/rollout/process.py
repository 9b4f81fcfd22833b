"""``WorkerProcess``: a process that hosts environments, reached through pipes, and killed when it fails."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from reflectrl.core.errors import InvalidInput, WorkFailed
from reflectrl.rollout.protocol import REPLIES, Raised, Reply, Request, encode_line

CLOSE_GRACE_S = 5.0
"""Seconds that a process has to close its environments when it is no longer needed."""
MEMORY_CHECK_INTERVAL_S = 0.2
_READ_BYTES = 2**16
_MAX_POLL_MS = 2**31 - 1

_PROGRAM = """
import sys
sys.path[:] = sys.argv[3:]
from reflectrl.rollout.host import serve
serve(int(sys.argv[1]), int(sys.argv[2]))
"""
_ONE_THREAD = dict.fromkeys(("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(eq=False)
class Call:
    """A request to one environment of a process, and the reply once it has come."""

    number: int
    """The environment's number, unique among those of its process."""
    request: Request
    deadline_s: float
    """Seconds, from the previous reply or the start of the wait, after which the process counts as stalled."""
    reply: Reply | None = None
    """Reply to the request; ``None`` until it arrives, and for good if the process ends because of another call."""


class WorkerProcess:
    """A process that hosts environments, with a pipe in each direction; the first request starts it, also after a kill.

    It is a new program rather than a fork, because a fork would copy torch's threads in the middle of their work.

    Args:
        max_memory_mb: resident memory above which ``recycle`` ends the process; twice as much is a failure.
    """

    def __init__(self, max_memory_mb: int | None = None) -> None:
        self.max_memory_mb = max_memory_mb
        self.hosted = 0
        """Number of open environments."""
        self.closed = False
        self.life = 1
        """Increases whenever the process ends; environments of an earlier life no longer exist."""
        self._episodes = 0  # number of episodes begun in this life
        self._pending: deque[Call] = deque()
        self._waiting_since = self._weighed_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._requests = self._replies = -1
        self._unfinished = bytearray()

    @property
    def busy(self) -> bool:
        """True while replies are pending."""
        return bool(self._pending)

    def send(self, calls: Sequence[Call]) -> None:
        """Send requests in one message to a process that is not busy; ``progress`` brings the replies."""
        if self.closed:
            raise InvalidInput("an environment was used after its worker processes were closed; make a new one.")
        if self._process is None:
            self._start()
        rest = memoryview(encode_line([(call.number, call.request) for call in calls]))
        self._pending.extend(calls)
        self.restart_clock()
        try:
            while rest:
                rest = rest[os.write(self._requests, rest) :]
        except OSError:
            pass  # it has ended, which is noticed when its replies are awaited
        except BaseException:  # interrupted, with half of the message sent
            self.kill()
            raise

    def _start(self) -> None:
        requests, self._requests = os.pipe()
        self._replies, replies = os.pipe()
        self._unfinished = bytearray()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(requests), str(replies), *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD},
            pass_fds=(requests, replies),
            process_group=0,
        )
        os.close(requests)
        os.close(replies)

    def restart_clock(self) -> None:
        """Count the deadline of the next reply from now on."""
        self._waiting_since = time.monotonic()

    @property
    def patience_s(self) -> float:
        """Seconds to wait for the next reply before its deadline or the memory has to be checked."""
        left_s = max(self._waiting_since + self._pending[0].deadline_s - time.monotonic(), 0.0)
        return left_s if self.max_memory_mb is None else min(left_s, MEMORY_CHECK_INTERVAL_S)

    def read(self) -> None:
        """Read what the process has sent; the pipe is known to be readable."""
        chunk = os.read(self._replies, _READ_BYTES)
        if not chunk:
            self._fail("died")
            return
        self._unfinished += chunk
        if b"\n" not in chunk:
            return
        *lines, rest = bytes(self._unfinished).split(b"\n")
        self._unfinished = bytearray(rest)
        for line in lines:
            if self._pending and self._fits_memory():
                self._take(line)

    def check(self) -> None:
        """End the process if its next reply is late, or if it uses too much memory."""
        deadline_s = self._pending[0].deadline_s
        if time.monotonic() - self._waiting_since >= deadline_s:
            self._fail(f"stalled for more than {deadline_s:g} s")
        else:
            self._fits_memory()

    @property
    def memory_mb(self) -> float:
        """Resident memory in MB, without that of other programs it has started; 0 without a process."""
        try:
            return 0.0 if self._process is None else psutil.Process(self._process.pid).memory_info().rss / 10**6
        except psutil.NoSuchProcess:
            return 0.0

    def recycle(self, episodes: int) -> bool:
        """End the process if it is too large for ``episodes`` more to begin; return whether it was."""
        if not episodes or self.max_memory_mb is None:
            return False
        memory_mb, begun = self.memory_mb, self._episodes
        if recycled := memory_mb > self.max_memory_mb:
            if begun < self.hosted:  # a new process would soon be as large
                raise WorkFailed(
                    f"a worker process uses {memory_mb:,.0f} MB of memory after {begun} episodes of {self.hosted} "
                    f"environments; max_memory_mb is {self.max_memory_mb:,}: raise it, or raise workers."
                )
            self.stop()
        self._episodes += episodes
        return recycled

    def stop(self) -> None:
        """End the process, if there is one; unless it is busy, it closes its environments first."""
        if self._process is not None and not self.busy:
            os.close(self._requests)
            self._requests = -1
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_GRACE_S)
        self.kill()

    def kill(self) -> int:
        """Kill the process, if there is one, and those that it started; return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        for pipe in (self._requests, self._replies):
            if pipe >= 0:
                os.close(pipe)
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self.life += 1
        self._episodes = 0
        self._pending.clear()
        return process.wait()

    def _take(self, line: bytes) -> None:
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
        memory_mb, most_mb = self.memory_mb, 2 * self.max_memory_mb
        if memory_mb > most_mb:
            self._fail(f"used {memory_mb:,.0f} MB of memory, more than {most_mb:,}")
            return False
        return True

    def _fail(self, how: str) -> None:
        """End the process, and blame the request that it was working on."""
        blamed = self._pending.popleft()
        status = self.kill()
        blamed.reply = Raised(f"died {_cause(status)}" if how == "died" else how)


def progress(processes: Sequence[WorkerProcess]) -> None:
    """Wait until one of the busy processes has sent something or is late, and read what is there."""
    poll, by_handle = select.poll(), {process._replies: process for process in processes}
    for handle in by_handle:
        poll.register(handle, select.POLLIN)
    try:
        patience_s = min(process.patience_s for process in processes)
        readable = {handle for handle, _ in poll.poll(min(math.ceil(patience_s * 1000), _MAX_POLL_MS))}
        for handle, process in by_handle.items():
            if handle in readable:
                process.read()
            else:
                process.check()
    except BaseException:  # interrupted: a reply may be half read, and a stalled process must not be waited for
        for process in processes:
            process.kill()
        raise


def _cause(status: int) -> str:
    if status >= 0:
        return f"with exit code {status}"
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"of {signal.Signals(-status).name}"
    return f"of signal {-status}"
