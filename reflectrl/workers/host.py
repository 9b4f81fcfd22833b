"""The inside of a worker process: environments by number, and the answers to requests.

A line of requests is read whole before the first of them is dealt with, so the two sides never wait for each other to
read. The process ends when the pipes are closed, and at once, whatever an environment is doing, when the one that
started it has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, InvalidInput, raised
from reflectrl.core.registry import make_env, register_env
from reflectrl.core.types import Hints, Observation, Outcome, Task
from reflectrl.workers.protocol import (
    REQUESTS,
    Answer,
    AskHints,
    Describe,
    ListTasks,
    Made,
    Make,
    Message,
    Played,
    Raised,
    Refused,
    Request,
    Reset,
    Step,
    encode_line,
    need_plain,
)

T = TypeVar("T")


def serve(requests: int, replies: int) -> None:
    """Answer the requests of one pipe, given by its file descriptor, into another until the first is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program that started this process decides when it ends
    for handle in (requests, replies):
        os.set_inheritable(handle, False)  # programs that an environment starts have no use for them
    _end_with_parent()
    _go_first()
    envs: dict[int, NatLangEnv] = {}
    with contextlib.suppress(OSError), open(requests, "rb") as incoming, open(replies, "wb") as outgoing:
        for line in incoming:
            if not line.endswith(b"\n"):  # its sender was stopped while writing
                break
            for number, request in REQUESTS.decode(line):
                outgoing.write(_reply(envs, number, request))
                outgoing.flush()
    for env in envs.values():
        with contextlib.suppress(Exception):  # the others are still to be closed
            env.close()


def _end_with_parent() -> None:
    """Have the kernel end this process, and those it starts, when the other end of its standard input is closed.

    A thread that waits for it would not get its turn while a library holds the interpreter.
    """
    fcntl.fcntl(sys.stdin, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(sys.stdin, fcntl.F_SETFL, fcntl.fcntl(sys.stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sys.stdin], [], [], 0)[0]:  # nothing is ever written there, so it was closed before
        os._exit(1)


def _go_first() -> None:
    """Have the kernel, when the machine runs out of memory, end this process rather than the one that trains."""
    with contextlib.suppress(OSError):  # only Linux can be asked for it
        Path("/proc/self/oom_score_adj").write_text("1000")


def _reply(envs: dict[int, NatLangEnv], number: int, request: Request) -> bytes:
    try:
        return encode_line(Answer(_answer(envs, number, request)))
    except InvalidInput as error:
        failure: Message = Refused(_encodable(str(error)))
    except EnvFailed as error:
        failure = Raised(_encodable(error.what))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side decides what becomes of the episode
        failure = Raised(_encodable(raised(error)))
    return encode_line(failure)


def _encodable(sentence: str) -> str:
    """Escape unpaired surrogates, which an author's error may hold."""
    return sentence.encode(errors="backslashreplace").decode()


def _answer(envs: dict[int, NatLangEnv], number: int, request: Request) -> Any:
    if isinstance(request, Make):
        if request.path is not None:
            register_env(request.name.partition(":")[0], request.path)
        if number in envs:
            with contextlib.suppress(Exception):  # it broke, perhaps beyond being closed
                envs.pop(number).close()
        env = envs[number] = make_env(request.name, **request.options)
        return Made(env.name, env.instructions, env.max_actions, env.horizon, env.further_splits)
    env = envs[number]
    match request:
        case ListTasks(split=split):
            tasks = env.any_tasks(split)
            for task in tasks:
                need_plain(task.options, f"task {task.id!r}")
            return [_bare(Task, task) for task in tasks]
        case Describe(split=split, tasks=count):
            return env.benchmark(split, count)
        case Reset(task=task, seed=seed):
            env.reset(seed=seed, options={"task": task})
            return _bare(Observation, env.observation)
        case Step(action=action):
            _, reward, ended, _, info = env.step(action)
            outcome = Outcome(reward, ended, info["success"], info["illegal"])
            return Played(outcome, _bare(Observation, env.observation))
        case AskHints():
            return _bare(Hints, env.hints())
    del envs[number]
    env.close()
    return None


def _bare(kind: type[T], record: T) -> T:
    """Copy a record without what an author's own subclass of it may hold besides."""
    if type(record) is kind:
        return record
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]  # it is a dataclass
    return kind(*(getattr(record, name) for name in names))
