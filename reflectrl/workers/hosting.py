"""The inside of a worker process: environments by number, and the answers to what is asked of them.

Requests and replies travel through pipes as lines of JSON: many requests in one line, then their replies, each a line.
A line is read whole before its first request is dealt with, so the two sides never wait for each other to read. The
process ends when the pipes are closed, and at once, whatever an environment is doing, when the one that started it has
ended.

Of what a worker says, nothing is made but values of the types that were asked for: it can lie, but it cannot run
anything. The records are taken apart and put together by hand, because that happens at every step.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, NoReturn, get_args

from reflectrl.core.env import NatLangEnv
from reflectrl.core.errors import EnvFailed, InvalidInput, raised
from reflectrl.core.promises import shown
from reflectrl.core.registry import make_env, register_env
from reflectrl.core.types import Hints, Observation, Outcome, Task

DEEPEST = 50
"""Lists and dicts inside each other, in the options of an environment or a task."""


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
    further_splits: tuple[str, ...]


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


# ---- lines of JSON ---------------------------------------------------------------------------------------------------


def write(pipe: FileIO, line: bytes) -> None:
    """All of it."""
    rest = memoryview(line)
    while rest:
        rest = rest[pipe.write(rest) :]


def line_of_requests(requests: Sequence[Numbered]) -> bytes:
    """What a worker reads.

    Raises:
        InvalidInput: the options of an environment or a task are not plain.

    """
    return _line([[number, type(request).__name__, *_fields(request)] for number, request in requests])


def read_reply(line: bytes, request: Request) -> Answer | Refused | Raised:
    """The reply to ``request`` that a worker has sent.

    Raises:
        ValueError: it is none.

    """
    match _DECODER.decode(line.decode()):
        case ["Answer", value]:
            return Answer(_put_together(request, value))
        case ["Refused", str(sentence)]:
            return Refused(sentence)
        case ["Raised", str(what)]:
            return Raised(what)
    raise ValueError("it is no reply")


def _put_together(request: Request, value: object) -> Any:
    match request, value:
        case Step(), [[float(reward), bool(ended), bool(success), bool(illegal)], seen] if math.isfinite(reward):
            return Played(Outcome(reward, ended, success, illegal), _observation(seen))
        case Reset(), seen:
            return _observation(seen)
        case AskHints(), [
            str() | None as action,
            str() | None as reflection,
            str() | None as spoiler,
            bool() | None as mistaken,
            list(secrets),
        ] if {*map(type, secrets)} <= {str}:
            return Hints(action, reflection, spoiler, mistaken, tuple(secrets))
        case ListTasks(), list(tasks):
            return tuple(map(_task, tasks))
        case Make(), [str(name), str(instructions), int(max_actions), int(horizon), list(splits)] if {
            *map(type, splits)
        } <= {str}:
            return Made(name, instructions, max_actions, horizon, tuple(splits))
        case (Describe(), str()) | (Close(), None):
            return value
    raise ValueError(f"{shown(value)} is no answer to {type(request).__name__}")


def _observation(value: object) -> Observation:
    match value:
        case [str(text), list(actions), str(task)] if {*map(type, actions)} <= {str}:
            return Observation(text, tuple(actions), task)
    raise ValueError(f"{shown(value)} is no observation")


def _task(value: object) -> Task:
    match value:
        case [str(name), dict(options)]:
            return Task(name, options)
    raise ValueError(f"{shown(value)} is no task")


def _read_requests(line: bytes) -> Iterator[Numbered]:
    """The other side is trusted."""
    for number, kind, *values in json.loads(line):
        if kind == "Reset":
            values[0] = Task(*values[0])
        yield number, _KINDS[kind](*values)


def _fields(request: Request) -> Sequence[Any]:
    if isinstance(request, Reset):
        return [_apart(request.task), request.seed]
    if isinstance(request, Make):
        _need_plain(request.options, f"environment {request.name!r}")
    return list(vars(request).values())


def _apart(task: Task) -> Sequence[Any]:
    _need_plain(task.options, f"task {task.id!r}")
    return [task.id, task.options]


def _need_plain(options: Mapping[str, Any], whose: str) -> None:
    """Refuse options that JSON would not give back as they are."""
    if isinstance(options, dict) and _is_plain(options):
        return
    given = options if isinstance(options, dict) else {"options": options}
    name = next((name for name, value in given.items() if not _is_plain({name: value})), "options")
    raise InvalidInput(
        f"{whose} has {shown(name)} = {shown(given[name])}, which cannot be sent to a worker process; expected plain "
        "values in its options: texts, finite numbers, True, False, None, and lists and dicts of these with texts as "
        "keys. Mend it, or play without worker processes (env.workers)."
    )


def _is_plain(value: object, levels: int = DEEPEST) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(isinstance(name, str) and _is_plain(item, levels - 1) for name, item in value.items())
    if isinstance(value, list):
        return levels > 0 and all(_is_plain(item, levels - 1) for item in value)
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


def _line(value: object) -> bytes:
    return f"{_ENCODER.encode(value)}\n".encode()


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}")


_KINDS: Mapping[str, type[Request]] = {kind.__name__: kind for kind in get_args(Request)}
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # half a character of an error's text is escaped
_DECODER = json.JSONDecoder(parse_constant=_no_number)

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
            for number, request in _read_requests(line):
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
        return _line(["Answer", _answer(envs, number, request)])
    except InvalidInput as error:
        return _line(["Refused", str(error)])
    except EnvFailed as error:
        return _line(["Raised", error.what])
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side decides what becomes of the episode
        return _line(["Raised", raised(error)])


def _answer(envs: dict[int, NatLangEnv], number: int, request: Request) -> Any:
    """Taken apart, without what an author's own classes may hold besides."""
    if isinstance(request, Make):
        if request.path is not None:
            register_env(request.name.partition(":")[0], request.path)
        if number in envs:
            with contextlib.suppress(Exception):  # it broke, perhaps beyond being closed
                envs.pop(number).close()
        env = envs[number] = make_env(request.name, **request.options)
        return [env.name, env.instructions, env.max_actions, env.horizon, env.further_splits]
    env = envs[number]
    match request:
        case ListTasks(split=split):
            return [_apart(task) for task in env.any_tasks(split)]
        case Describe(split=split, tasks=tasks):
            return env.benchmark(split, tasks)
        case Reset(task=task, seed=seed):
            env.reset(seed=seed, options={"task": task})
            return _shown(env)
        case Step(action=action):
            _, reward, ended, _, info = env.step(action)
            return [[reward, ended, info["success"], info["illegal"]], _shown(env)]
        case AskHints():
            hints = env.hints()
            return [hints.action, hints.reflection, hints.spoiler, hints.mistaken, hints.secrets]
    del envs[number]
    env.close()
    return None


def _shown(env: NatLangEnv) -> Sequence[Any]:
    return [env.observation.text, env.observation.actions, env.observation.task]
