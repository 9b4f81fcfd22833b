"""Servers of installed OpenEnv packages, each a process of its own that the environments of this process share."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

from reflectrl.core import InvalidInput
from reflectrl.core.foreign import child_environment

SESSIONS = "64"
"""Maximum number of sessions of a server, where its package takes that from ``MAX_CONCURRENT_ENVS``."""
_PROGRAM = """
import os, socket, sys, threading
sys.path[:] = sys.argv[3:]
threading.Thread(target=lambda: (os.read(0, 1), os._exit(0)), daemon=True).start()
import uvicorn
server = uvicorn.Server(uvicorn.Config(sys.argv[1], log_level="error"))
server.run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
"""
"""It ends with the program that started it, which holds the other end of its input."""


class Server:
    """A process that runs the application of an installed package.

    Requests that come before it is ready wait in the queue of its socket; if it ends, they are refused.

    Args:
        app: ``module:attribute`` of the application.
        variables: environment variables, by which such packages are configured.
    """

    def __init__(self, app: str, variables: Mapping[str, str]) -> None:
        self._app = app
        self._errors: Any = tempfile.TemporaryFile()  # noqa: SIM115 - it is read when the process has ended
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
            self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, app, str(listener.fileno()), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=child_environment(**{"MAX_CONCURRENT_ENVS": SESSIONS, **variables}),
                pass_fds=(listener.fileno(),),
                process_group=0,  # Ctrl-C is for this program, which ends it
            )

    def last_words(self, wait_s: float = 0.0) -> str:
        """Return what it said last if it has ended, or does within ``wait_s`` seconds; empty while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        if self._process.returncode is None:
            return ""
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
        return f"the server of {self._app} ended: {lines[-1] if lines else f'status {self._process.returncode}'}"

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()


_RUNNING: dict[tuple[object, ...], list[Server]] = {}
"""Servers by application and variables."""
_USERS: dict[tuple[object, ...], WeakSet[object]] = {}
"""Who may have a session with them."""
_COUNTING = threading.Lock()


def from_environment(option: str, value: str) -> str:
    """Return the value of the environment variable that an option names as ``$NAME``.

    Raises:
        InvalidInput: the variable is missing or empty, or the option is no such name; then it is not repeated.
    """
    if not (value.startswith("$") and os.environ.get(value[1:])):
        given = f"{value}, which is not set" if value.startswith("$") else "something else"
        raise InvalidInput(
            f"the option {option} is {given}; expected $NAME of an environment variable that holds the key, because "
            "options are written into run folders."
        )
    return os.environ[value[1:]]


def addresses(server: str, variables: Mapping[str, str], user: object) -> Iterator[str]:
    """Yield where to ask for a session: the address that is given, or those of servers that run, and of a new one.

    Servers that are started here run until each ``user`` of them has left.
    """
    if "://" in server:
        yield server.rstrip("/")
        return
    app = server if ":" in server else f"{server}.server.app:app"
    which = (app, *sorted(variables.items()))
    with _COUNTING:
        _USERS.setdefault(which, WeakSet()).add(user)
    running = _RUNNING.setdefault(which, [])
    for each in [each for each in running if each.last_words()]:
        running.remove(each)
        each.stop()
    yield from [each.url for each in running]
    running.append(Server(app, variables))
    yield running[-1].url


def leave(user: object) -> None:
    """Stop the servers that nobody else uses."""
    with _COUNTING:
        for which, users in _USERS.items():
            if user in users:
                users.remove(user)
                if not users:
                    _stop(_RUNNING.get(which, []))


def last_words(url: str) -> str:
    """Return what our server at an address said if it has ended; empty while it runs, and for servers of others."""
    ours = (each for running in _RUNNING.values() for each in running if each.url == url)
    return next((each.last_words(wait_s=2.0) for each in ours), "")  # it closes its socket before it ends


def _stop(running: list[Server]) -> None:
    while running:
        running.pop().stop()


@atexit.register
def _stop_all() -> None:
    for running in _RUNNING.values():
        _stop(running)
