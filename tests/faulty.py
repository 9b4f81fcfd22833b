"""An environment with faults on demand, for the tests of worker processes."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from reflectrl.core import InvalidInput, NatLangEnv, Observation, Outcome, Reading, Task, register_env, registry

FAULTS = {
    "exit": lambda: os._exit(3),
    "quit": lambda: sys.exit(4),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "odd signal": lambda: os.kill(os.getpid(), 40),
    "stall": lambda: time.sleep(3600),
    "no answer": lambda: os.write(int(sys.argv[2]), b"null\n"),
    "half an answer": lambda: (os.write(int(sys.argv[2]), b'["Answer",'), os._exit(3)),
    "stall with a child": lambda: subprocess.run(["sleep", "3600"], check=False),
}
DEADLY = {"exit", "kill", "stall", "stall with a child"}
"""Faults that end the process."""


KEPT = []
"""Objects that are never freed, for the fault of leaking memory."""


class Farewell(BaseException):
    """Error that is not an ``Exception``."""


class Faulty(NatLangEnv):
    """Environment of six steps along a corridor, with random numbers in its texts and a ``fault`` at one step.

    The fault happens at step ``at`` (0 is the start) of the task ``task``; if ``marker`` is a path, only once, since it
    leaves a file there. Fault ``wait`` waits until the file ``gate`` exists, and ``open`` creates it. Of a task's
    options, ``note`` is part of every text, and ``length`` ends the episode early. The instructions describe the
    process that the environment runs in, and the file ``log``, if given, lists the tasks that were started.
    """

    name = "faulty"
    max_actions = 2

    def __init__(self, fault="", at=3, task="train-1", marker="", signed=False, gate="", log=""):
        super().__init__(horizon=6)
        if fault == "unmade":
            raise ZeroDivisionError("nothing was made")
        threads = os.environ.get("OMP_NUM_THREADS")
        self.instructions = json.dumps({"pid": os.getpid(), "torch": "torch" in sys.modules, "threads": threads})
        self.place = (task, at)
        self.fault = fault
        self.marker = marker
        self.signed = signed
        self.gate = gate
        self.log = log
        if fault == "noise":
            self.make_noise()

    def tasks(self, split):
        if self.fault == "odd tasks":
            return [Task("train-1", {"at": (1, 2)})]
        return [Task(f"{split}-{number}", {"number": number}) for number in range(6)]

    def start(self, task):
        self.number = task.options["number"]
        if self.fault == "leak":
            KEPT.append(b"x" * 10_000_000)
        if self.log:
            with Path(self.log).open("a") as log:
                log.write(f"{task.id}\n")
        self.fail()

    def observe(self):
        wall = f"Door {self.number}, number {int(self.number_on_the_wall)}.{self.task.options.get('note', '')}"
        return Observation(f"{wall} {os.getpid()}" if self.signed else wall, ("left", "right"))

    def act(self, action):
        self.number = self.number * 2 + (action == "right")
        ended = self.steps == self.task.options.get("length")
        return self.fail() or Outcome(0.5, ended=ended, illegal=action == "left")

    def expert(self):
        if (self.fault, self.task.id) == ("hints", self.place[0]):
            raise RuntimeError("nobody knows")
        return "right"

    def read_thought(self, _):
        if (self.fault, self.task.id, self.steps) == ("thought", *self.place):
            raise Farewell("good bye")
        return Reading()

    @property
    def number_on_the_wall(self):
        return (self.number * 7919 + self._seed) % 1000

    def fail(self):
        if "files" in KEPT:
            raise OSError(errno.EMFILE, "Too many open files")
        if (self.task.id, self.steps) != self.place or (self.marker and Path(self.marker).exists()):
            return None
        if self.marker:
            Path(self.marker).write_text(str(os.getpid()))
        if self.fault in FAULTS:
            return FAULTS[self.fault]()
        if self.fault == "raise":
            raise ZeroDivisionError("divided by nothing.\nat all")
        if self.fault == "farewell":
            raise Farewell("good bye")
        if self.fault == "interrupt":
            raise KeyboardInterrupt
        if self.fault == "refuse":
            raise InvalidInput("this task is not for you; choose another.")
        if self.fault == "nonsense":
            return Outcome(math.nan)
        if self.fault == "grow":
            while True:
                KEPT.append(b"x" * 1_000_000)
                time.sleep(0.001)
        if self.fault == "leave a child":
            subprocess.Popen(["sleep", "3600"], stdin=subprocess.DEVNULL)
        if self.fault == "vandalism":
            os.chdir("/")
            random.seed(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sys.stdout.close()
        if self.fault == "out of files":
            KEPT.append("files")
        if self.fault == "noise":
            self.make_noise()
        if self.fault == "wait":
            wait_until(Path(self.gate).exists)
        if self.fault == "open":
            Path(self.gate).touch()
        return None

    def make_noise(self):
        sys.stdout.write("noise of Python\n")
        sys.stdout.flush()
        os.write(1, b"noise of C\n")
        subprocess.run(["echo", "noise of a program"], check=True)


@contextlib.contextmanager
def restored_registry():
    """Restore the table of environments after the context."""
    before = dict(registry._TARGETS)
    try:
        yield
    finally:
        registry._TARGETS.clear()
        registry._TARGETS.update(before)


@contextlib.contextmanager
def registered():
    """Register the environment ``faulty`` within the context."""
    with restored_registry():
        register_env("faulty", Faulty)
        yield


def wait_until(condition):
    """Wait until a condition holds, such as one that another process fulfils; fail after five minutes."""
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def processes(parent=None, group=None):
    """Return the ids of processes with this parent (including zombies), or alive in this process group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if process.ppid() == parent or (alive and os.getpgid(process.pid) == group):
                found.append(process.pid)
    return found
