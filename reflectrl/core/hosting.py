"""The inside of a worker process: environments by number, and the answers to what is asked of them.

The requests and replies are records that travel through pipes: many requests in one message, then their replies one by
one. A message is read whole before its first request is dealt with, so the two sides never wait for each other to read.
It ends when they are closed, and at once, whatever an environment is doing, when the process that started it has
ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, InvalidInput, raised
from reflectrl.core.registry import make_env, register_env
from reflectrl.core.types import Observation, Outcome, Task


@dataclass(frozen=True)
class Make:
    """Make the environment, in place of one with the same number; answered by ``Made``."""

    name: str
    options: Mapping[str, Any]
    path: str | None
    """``module:Class``, where the name was registered at run time."""


@dataclass(frozen=True)
class ListTasks:
    """Answered by a tuple of ``Task``."""

    split: str


@dataclass(frozen=True)
class Describe:
    """Answered by what results on so many tasks of a split must say about themselves."""

    split: str
    tasks: int


@dataclass(frozen=True)
class Reset:
    """Begin an episode; answered by the first observation."""

    task: Task
    seed: int | None


@dataclass(frozen=True)
class Step:
    """Play an action; answered by ``Played``."""

    action: str


@dataclass(frozen=True)
class AskHints:
    """Answered by ``Hints``."""


@dataclass(frozen=True)
class Close:
    """Forget the environment; answered by ``None``."""


Request = Make | ListTasks | Describe | Reset | Step | AskHints | Close
"""Something asked of one environment."""
Numbered = tuple[int, Request]
"""The environment's number, unique among those of a process, and what is asked of it."""


@dataclass(frozen=True)
class Made:
    """What an environment says of itself."""

    name: str
    instructions: str
    max_actions: int
    horizon: int


@dataclass(frozen=True)
class Played:
    """What an action did, and what came of it."""

    outcome: Outcome
    observation: Observation


@dataclass(frozen=True)
class Answer:
    """The reply to a request that went well."""

    value: Any


@dataclass(frozen=True)
class Refused:
    """The reply to a request that cannot be met: an ``InvalidInput``."""

    sentence: str


@dataclass(frozen=True)
class Raised:
    """The reply to a request at which the environment broke down."""

    what: str


def serve(requests: int, replies: int) -> None:
    """Answer what comes through the pipe ``requests`` until it is closed, through the pipe ``replies``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process decides
    for handle in (requests, replies):
        os.set_inheritable(handle, False)  # they were, to come here; what an environment starts has no use for them
    _end_with_parent()
    _go_first()
    envs: dict[int, NatLangEnv] = {}
    with Connection(requests, writable=False) as incoming, Connection(replies, readable=False) as outgoing:
        while True:
            try:
                for number, request in incoming.recv():
                    _send(outgoing, _reply(envs, number, request))
            except (EOFError, OSError):
                break
    for env in envs.values():
        with contextlib.suppress(Exception):  # the others are still to be closed
            env.close()


def _send(pipe: Connection, reply: Answer | Refused | Raised) -> None:
    try:
        pipe.send(reply)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - an answer that cannot travel, before any of it has left
        pipe.send(Raised(raised(error)))


def _end_with_parent() -> None:
    """Have the kernel end this process, and those it starts, when the other end of its standard input is closed.

    A thread that waits for it would not get its turn while a library holds the interpreter.
    """
    fcntl.fcntl(sys.stdin, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(sys.stdin, fcntl.F_SETFL, fcntl.fcntl(sys.stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sys.stdin], [], [], 0)[0]:  # nobody ever writes there: it was closed before that
        os._exit(1)


def _go_first() -> None:
    """Have the kernel, when the machine runs out of memory, end this process rather than the one that trains."""
    with contextlib.suppress(OSError):  # only Linux can be asked for it
        Path("/proc/self/oom_score_adj").write_text("1000")


def _reply(envs: dict[int, NatLangEnv], number: int, request: Request) -> Answer | Refused | Raised:
    try:
        return Answer(_answer(envs, number, request))
    except InvalidInput as error:
        return Refused(str(error))
    except EnvFailed as error:
        return Raised(error.what)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side decides what becomes of the episode
        return Raised(raised(error))


def _answer(envs: dict[int, NatLangEnv], number: int, request: Request) -> Any:
    if isinstance(request, Make):
        if request.path is not None:
            register_env(request.name.partition(":")[0], request.path)
        if number in envs:
            with contextlib.suppress(Exception):  # it broke, perhaps beyond being closed
                envs.pop(number).close()
        env = envs[number] = make_env(request.name, **request.options)
        return Made(env.name, env.instructions, env.max_actions, env.horizon)
    env = envs[number]
    match request:
        case ListTasks(split=split):
            return tuple(env.any_tasks(split))
        case Describe(split=split, tasks=tasks):
            return env.benchmark(split, tasks)
        case Reset(task=task, seed=seed):
            env.reset(seed=seed, options={"task": task})
            return _plain(env.observation)
        case Step(action=action):
            _, reward, ended, _, info = env.step(action)
            return Played(Outcome(reward, ended, info["success"], info["illegal"]), _plain(env.observation))
        case AskHints():
            return env.hints()
    del envs[number]
    env.close()
    return None


def _plain(observation: Observation) -> Observation:
    """Without what an author's own class may hold besides."""
    return Observation(observation.text, observation.actions, observation.task)
