"""Messages between a program and its worker processes: requests to environments, and the replies.

They are sent through pipes as lines of JSON: many requests in one line, then one line for each reply. ``msgspec`` reads
and writes them by their types, in C, because that happens at every step. A worker's line is only decoded to values of
the expected types: a worker can send wrong values, but it cannot run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from reflectrl.core.errors import InvalidInput
from reflectrl.core.jsonl import to_plain
from reflectrl.core.text import shown
from reflectrl.core.types import Hints, Observation, Outcome, Reading, Task

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base class of the messages; on the wire, a message is a list that begins with the name of its class."""


class Make(Message, frozen=True):
    """Create the environment, in place of one with the same number; answered by ``Made``."""

    name: str
    options: Mapping[str, Any]
    path: str | None
    """``module:Class`` of a name that was registered at run time; else ``None``."""


class ListTasks(Message, frozen=True):
    """List the tasks of a split; answered by a tuple of ``Task``."""

    split: str


class Describe(Message, frozen=True):
    """Describe results on a number of tasks of a split; answered by a text that must accompany such results."""

    split: str
    tasks: int


class Reset(Message, frozen=True):
    """Begin an episode; answered by the first observation."""

    task: Task
    seed: int | None


class PlayAction(Message, frozen=True):
    """Play an action; answered by ``Played``."""

    action: str


class AskHints(Message, frozen=True):
    """Ask the expert about the present state; answered by ``Hints``."""

    previous: str | None = None
    """Reflection of the step before, which the expert's builds on; ``None`` without one."""


class AskReading(Message, frozen=True):
    """Ask about a policy's thought; answered by ``Reading``."""

    thought: str


class Close(Message, frozen=True):
    """Close the environment; answered by ``None``."""


Request = Make | ListTasks | Describe | Reset | PlayAction | AskHints | AskReading | Close
EpisodeRequest = Reset | PlayAction | AskHints | AskReading


@dataclass(frozen=True)
class Made:
    """Properties of a new environment."""

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


class Result(Message, Generic[T], frozen=True):
    """The reply to a request that succeeded."""

    value: T


class Invalid(Message, frozen=True):
    """The reply to an invalid request: an ``InvalidInput``."""

    sentence: str


class Raised(Message, frozen=True):
    """The reply to a request in which the environment failed."""

    what: str


Reply = Result[Any] | Invalid | Raised
"""Message of a worker in reply to a request."""

_ENCODER = msgspec.json.Encoder(enc_hook=to_plain)
REQUESTS = msgspec.json.Decoder(list[tuple[int, Request]])
"""Decoder of the requests in one line, each after the number of its environment, unique among those of a process."""
REPLIES: Mapping[type[Request], msgspec.json.Decoder[Reply]] = {
    request: msgspec.json.Decoder(Result[kind] | Invalid | Raised)  # type: ignore[valid-type]  # made at run time
    for request, kind in (
        (Make, Made),
        (ListTasks, tuple[Task, ...]),
        (Describe, str),
        (Reset, Observation),
        (PlayAction, Played),
        (AskHints, Hints),
        (AskReading, Reading),
        (Close, None),
    )
}
"""Decoder of the replies to each kind of request; it raises ``ValueError`` if a line is none."""


def encode_line(message: object) -> bytes:
    """Write a message, or a list of them, as a line of JSON."""
    return _ENCODER.encode(message) + b"\n"


def need_plain(options: Mapping[str, Any], owner: str) -> None:
    """Refuse options that JSON would not return unchanged.

    Raises:
        InvalidInput: the first such option of ``owner``.
    """
    for name, value in options.items():
        try:
            plain = msgspec.json.decode(encode_line({name: value})) == {name: value}
        except (TypeError, ValueError, RecursionError):
            plain = False
        if not plain:
            raise InvalidInput(
                f"{owner} has {shown(name)} = {shown(value)}, which cannot be sent to a worker process; expected plain "
                "values in its options: texts, finite numbers, True, False, None, and lists and dicts of these with "
                "texts as keys. Fix it, or play without worker processes (env.workers)."
            )
