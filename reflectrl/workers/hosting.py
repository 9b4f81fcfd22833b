"""The inside of a worker process: environments by number, and the answers to what is asked of them.

Requests and replies travel through pipes as lines of JSON: many requests in one line, then their replies, each a line.
A line is read whole before its first request is dealt with, so the two sides never wait for each other to read. The
process ends when the pipes are closed, and at once, whatever an environment is doing, when the one that started it has
ended.

Of what a worker says, nothing is made but values of the types that were asked for: it can lie, but it cannot run
anything. ``msgspec`` reads and writes the messages by their types, in C, because that happens at every step.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from io import FileIO
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, InvalidInput, raised
from reflectrl.core.jsonl import MAX_NESTING, to_plain
from reflectrl.core.promises import can_be_encoded, shown
from reflectrl.core.registry import make_env, register_env
from reflectrl.core.types import Hints, Observation, Outcome, Task

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A member of a union on the wire: a list that begins with its class's name."""


class Make(Message, frozen=True):
    """Make the environment, in place of one with the same number; answered by ``Made``."""

    name: str
    options: Mapping[str, Any]
    path: str | None
    """``module:Class``, where the name was registered at run time."""


class ListTasks(Message, frozen=True):
    """Answered by a tuple of ``Task``."""

    split: str


class Describe(Message, frozen=True):
    """Answered by what results on so many tasks of a split must say about themselves."""

    split: str
    tasks: int


class Reset(Message, frozen=True):
    """Begin an episode; answered by the first observation."""

    task: Task
    seed: int | None


class Step(Message, frozen=True):
    """Play an action; answered by ``Played``."""

    action: str


class AskHints(Message, frozen=True):
    """Answered by ``Hints``."""


class Close(Message, frozen=True):
    """Close the environment; answered by ``None``."""


Request = Make | ListTasks | Describe | Reset | Step | AskHints | Close
"""A request to one environment."""
Numbered = tuple[int, Request]
"""The environment's number, unique among those of a process, and a request to it."""


@dataclass(frozen=True)
class Made:
    """What an environment says of itself."""

    name: str
    instructions: str
    max_actions: int
    horizon: int
    further_splits: tuple[str, ...]


@dataclass(frozen=True)
class Played:
    """An action's outcome, and the observation after it."""

    outcome: Outcome
    observation: Observation


class Answer(Message, Generic[T], frozen=True):
    """The reply to a request that went well."""

    value: T


class Refused(Message, frozen=True):
    """The reply to a request that cannot be met: an ``InvalidInput``."""

    sentence: str


class Raised(Message, frozen=True):
    """The reply to a request at which the environment broke down."""

    what: str


# ---- lines of JSON ---------------------------------------------------------------------------------------------------

_ENCODER = msgspec.json.Encoder(enc_hook=to_plain)
_REQUESTS = msgspec.json.Decoder(list[Numbered])
_ANSWERS: Mapping[type[Request], Any] = {
    Make: Made,
    ListTasks: tuple[Task, ...],
    Describe: str,
    Reset: Observation,
    Step: Played,
    AskHints: Hints,
    Close: None,
}
_REPLIES = {request: msgspec.json.Decoder(Answer[kind] | Refused | Raised) for request, kind in _ANSWERS.items()}  # type: ignore[valid-type]


def write(pipe: FileIO, line: bytes) -> None:
    """Write the whole line, also when the pipe accepts only a part at a time."""
    rest = memoryview(line)
    while rest:
        rest = rest[pipe.write(rest) :]


def line_of_requests(requests: Sequence[Numbered]) -> bytes:
    """Write what a worker reads.

    Raises:
        InvalidInput: the options of an environment or a task are not plain.

    """
    for _, request in requests:
        if isinstance(request, Make):
            _need_plain(request.options, f"environment {request.name!r}")
        elif isinstance(request, Reset):
            _need_plain(request.task.options, f"task {request.task.id!r}")
    return _ENCODER.encode(requests) + b"\n"


def read_reply(line: bytes, request: Request) -> Answer[Any] | Refused | Raised:
    """Read the reply to ``request`` that a worker has sent.

    Raises:
        ValueError: it is none.

    """
    reply: Answer[Any] | Refused | Raised = _REPLIES[type(request)].decode(line)
    return reply


def _need_plain(options: Mapping[str, Any], whose: str) -> None:
    """Refuse options that JSON would not give back as they are."""
    if isinstance(options, dict) and _is_plain(options):
        return
    given = options if isinstance(options, dict) else {"options": options}
    name = next((name for name, value in given.items() if not _is_plain({name: value})), "options")
    raise InvalidInput(
        f"{whose} has {shown(name)} = {shown(given[name])}, which cannot be sent to a worker process; expected plain "
        "values in its options: texts, finite numbers, True, False, None, and lists and dicts of these with texts as "
        "keys. Fix it, or play without worker processes (env.workers)."
    )


def _is_plain(value: object, levels: int = MAX_NESTING) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(
            isinstance(name, str) and _is_plain(name) and _is_plain(item, levels - 1) for name, item in value.items()
        )
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(item, levels - 1) for item in value)
    if isinstance(value, str):
        return can_be_encoded(value)
    return value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))


# ---- the process -----------------------------------------------------------------------------------------------------


def serve(requests: int, replies: int) -> None:
    """Answer what comes through the pipe ``requests`` until it is closed, through the pipe ``replies``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process decides
    for handle in (requests, replies):
        os.set_inheritable(handle, False)  # they were, to come here; what an environment starts has no use for them
    _end_with_parent()
    _go_first()
    envs: dict[int, NatLangEnv] = {}
    with open(requests, "rb") as incoming, FileIO(replies, "w") as outgoing, contextlib.suppress(OSError):
        for line in incoming:
            if not line.endswith(b"\n"):  # whoever sent it was stopped
                break
            for number, request in _REQUESTS.decode(line):
                write(outgoing, _reply(envs, number, request))
    for env in envs.values():
        with contextlib.suppress(Exception):  # the others are still to be closed
            env.close()


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


def _reply(envs: dict[int, NatLangEnv], number: int, request: Request) -> bytes:
    try:
        return _ENCODER.encode(Answer(_answer(envs, number, request))) + b"\n"
    except InvalidInput as error:
        failure: Message = Refused(_encodable(str(error)))
    except EnvFailed as error:
        failure = Raised(_encodable(error.what))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side decides what becomes of the episode
        failure = Raised(_encodable(raised(error)))
    return _ENCODER.encode(failure) + b"\n"


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
                _need_plain(task.options, f"task {task.id!r}")
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
    names = (field.name for field in fields(kind))  # type: ignore[arg-type]  # it is a dataclass
    return kind(*(getattr(record, name) for name in names))
