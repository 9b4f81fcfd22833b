"""A program in the place of Python for the runs of sweeps: its ``-m reflectrl`` is a ``WarmProcess``."""

from __future__ import annotations

import json
import socket
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warm_processes import WarmProcess, command_line

_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys
told = {{"log": os.readlink("/proc/self/fd/1"), "cwd": os.getcwd(), "env": dict(os.environ), "words": sys.argv[3:]}}
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
answers = server.makefile("rw")
print(json.dumps(told), file=answers, flush=True)
process = int(answers.readline())
signal.signal(signal.SIGTERM, lambda number, _: os.kill(process, number))
code = int(answers.readline())
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""
"""Asks the server to start the process, passes SIGTERM on, and ends as the process has ended."""


@contextmanager
def warm_python(folder: Path) -> Iterator[Path]:
    """Serve a program that runs ``PROGRAM -m reflectrl WORDS`` with its own environment, folder and output file.

    It keeps the descriptors that it inherits, such as locks, until the process has ended.
    """
    program, address = folder / "python", f"\0{uuid.uuid4()}"
    program.write_text(_PROGRAM.format(python=sys.executable, address=address), encoding="utf-8")
    program.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield program
        server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            asked, _ = server.accept()
        except OSError:  # it was shut down
            return
        threading.Thread(target=_answer, args=(asked,), daemon=True).start()


def _answer(asked: socket.socket) -> None:
    with asked, asked.makefile("rw") as lines:
        told = json.loads(lines.readline())
        log, cwd = Path(told["log"]), Path(told["cwd"])
        process = WarmProcess(log, command_line, *told["words"], cwd=cwd, env=told["env"], append=True)
        print(process.pid, file=lines, flush=True)
        print(process.wait(), file=lines, flush=True)
