"""The program of a worker process: environments by number, and the answers to requests.

A line of requests is read completely before the first is processed, so the two sides never wait for each other to read.
The process ends when the pipes are closed. When its parent process has ended, it ends at once, whatever an environment
is doing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, InvalidInput, raised
from reflectrl.core.foreign import message_of
from reflectrl.core.registry import make_env, register_env
from reflectrl.core.types import Outcome
from reflectrl.rollout.protocol import (
    REQUESTS,
    AskHints,
    AskReading,
    Describe,
    Invalid,
    ListTasks,
    Made,
    Make,
    PlayAction,
    Played,
    Raised,
    Request,
    Reset,
    Result,
    encode_line,
    need_plain,
)


def serve(requests: int, replies: int) -> None:
    """Answer the requests of one pipe, given by its file descriptor, into another until the first is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program that started this process decides when it ends
    for handle in (requests, replies):
        os.set_inheritable(handle, False)  # not inherited by programs that an environment starts
    _end_with_parent()
    with contextlib.suppress(OSError):  # on Linux, this process is killed before its parent if memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000")
    envs: dict[int, NatLangEnv] = {}
    with contextlib.suppress(OSError), open(requests, "rb") as incoming, open(replies, "wb") as outgoing:
        for line in incoming:
            if not line.endswith(b"\n"):  # its sender was stopped while writing
                break
            for number, request in REQUESTS.decode(line):
                outgoing.write(_reply(envs, number, request))
                outgoing.flush()
    for env in envs.values():
        with contextlib.suppress(BaseException):  # the other environments must still be closed
            env.close()


def _end_with_parent() -> None:
    """Have the kernel end this process, and those it starts, when the other end of its standard input is closed."""
    fcntl.fcntl(sys.stdin, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(sys.stdin, fcntl.F_SETFL, fcntl.fcntl(sys.stdin, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([sys.stdin], [], [], 0)[0]:  # nothing is ever written there, so it was closed before
        os._exit(1)


def _reply(envs: dict[int, NatLangEnv], number: int, request: Request) -> bytes:
    try:
        return encode_line(Result(_answer(envs, number, request)))
    except InvalidInput as error:
        kind: type[Invalid | Raised] = Invalid
        said = message_of(error)
    except EnvFailed as error:
        kind, said = Raised, error.what
    except BaseException as error:  # noqa: BLE001 - after any error, the parent decides what happens to the episode
        kind, said = Raised, raised(error)
    return encode_line(kind(said.encode(errors="backslashreplace").decode()))  # it may hold unpaired surrogates


def _answer(envs: dict[int, NatLangEnv], number: int, request: Request) -> Any:
    if isinstance(request, Make):
        if request.path is not None and request.path != request.name:
            register_env(request.name.partition(":")[0], request.path)
        if number in envs:
            with contextlib.suppress(BaseException):  # a broken environment may be impossible to close
                envs.pop(number).close()
        env = envs[number] = make_env(request.name, **request.options)
        return Made(env.name, env.instructions, env.max_actions, env.horizon, env.further_splits)
    env = envs[number]
    match request:
        case ListTasks(split=split):
            tasks = env.any_tasks(split)
            for task in tasks:
                need_plain(task.options, f"task {task.id!r}")
            return tasks
        case Describe(split=split, tasks=count):
            return env.split_benchmark(split, count)
        case Reset(task=task, seed=seed):
            env.reset(seed=seed, options={"task": task})
            return env.observation
        case PlayAction(action=action):
            _, reward, ended, _, info = env.step(action)
            outcome = Outcome(reward, ended, info["success"], info["illegal"])
            return Played(outcome, env.observation)
        case AskHints(previous=previous):
            return env.hints(previous)
        case AskReading(thought=thought):
            return env.reading(thought)
    del envs[number]
    env.close()
    return None
