"""``Journal``: every reply that was paid for, so that no call is paid for twice, after a kill neither.

A reply is known by a digest of everything that was asked, and of whom. It is on the disk before anybody reads it, so a
process that is started again asks the same questions, is given the same replies, and comes to the same result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from reflectrl.core import WorkFailed
from reflectrl.core.chat import Messages
from reflectrl.core.jsonl import append_jsonl, decode, mend_tail, read_jsonl
from reflectrl.endpoint.account import Tokens

REPLIES = "replies.jsonl"
REJECTED = "rejected.jsonl"

T = TypeVar("T")


@dataclass(frozen=True)
class PaidReply:
    """One line of ``replies.jsonl``."""

    asked: str
    """Digest of the chat and of the endpoint's settings that shape a reply."""
    text: str | None
    """The model's words; ``None`` for a reply without any, which was paid for all the same, and for one to forget."""
    tokens: Tokens
    batch: bool
    """Whether it came in OpenAI's Batch mode."""
    cut: bool = False
    """Whether ``max_tokens`` ended it before its end, so that it cannot be used as it is."""


@dataclass(frozen=True)
class RejectedCall:
    """One line of ``rejected.jsonl``: what was asked, and why no reply could be used."""

    asked: str
    reason: str
    chat: tuple[Mapping[str, str], ...]


class RejectedReply(WorkFailed):
    """However often it was asked, the model gave no usable reply; the call is set aside, and others go on."""


class Journal:
    """The calls of one role in one run folder.

    Args:
        folder: holds ``replies.jsonl`` and ``rejected.jsonl``; ``None`` to keep no replies.

    Raises:
        InvalidInput: files of another kind.

    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._replies: dict[str, str] = {}
        self._rejected: dict[str, str] = {}
        self._cut: set[str] = set()
        self.paid: list[tuple[Tokens, bool]] = []
        """Of each reply of an earlier process: its tokens, and whether it came in Batch mode."""
        if folder is not None:
            for name in (REPLIES, REJECTED):
                mend_tail(folder / name)
            for reply in read_replies(folder):
                self._remember(reply)
                self.paid.append((reply.tokens, reply.batch))
            for call in _lines(folder / REJECTED, RejectedCall):
                self._rejected[call.asked] = call.reason

    @property
    def rejected(self) -> int:
        """Calls that were set aside so far."""
        return len(self._rejected)

    @property
    def rejected_path(self) -> Path | None:
        """Where they are; who takes lines out has them asked again."""
        return None if self._folder is None else self._folder / REJECTED

    def known(self, asked: str) -> str | None:
        """The reply to a call, if there is one already.

        Raises:
            RejectedReply: the call was set aside.

        """
        if asked in self._rejected:
            raise RejectedReply(self._rejected[asked])
        return self._replies.get(asked)

    def is_cut(self, asked: str) -> bool:
        """Whether ``max_tokens`` ended the reply to a call before its end."""
        return asked in self._cut

    def add(self, reply: PaidReply) -> None:
        """Keep a reply; on the disk when this returns."""
        self._append(REPLIES, reply)
        self._remember(reply)

    def reject(self, asked: str, chat: Messages, reason: str, bad: Sequence[str] = ()) -> None:
        """Set a call aside, and forget the ``bad`` replies that it came to: who asks again wants others."""
        self._append(REJECTED, RejectedCall(asked, reason, tuple(chat)))
        self._rejected[asked] = reason
        for forgotten in bad:
            self.add(PaidReply(forgotten, None, Tokens(), batch=False))

    def _append(self, name: str, line: PaidReply | RejectedCall) -> None:
        if self._folder is not None:
            append_jsonl(self._folder / name, [line])

    def _remember(self, reply: PaidReply) -> None:
        (self._cut.add if reply.cut else self._cut.discard)(reply.asked)
        if reply.text is None:
            self._replies.pop(reply.asked, None)
        elif self._folder is not None:
            self._replies[reply.asked] = reply.text


def read_replies(folder: Path) -> list[PaidReply]:
    """The replies in ``folder``; earlier versions took those that were cut for whole ones.

    Raises:
        InvalidInput: a damaged file.

    """
    return _lines(folder / REPLIES, PaidReply, {"cut": False})


def _lines(path: Path, kind: type[T], absent: Mapping[str, object] = MappingProxyType({})) -> list[T]:
    """The records of a file; ``absent`` are fields that earlier versions did not write."""
    if not path.exists():
        return []
    lines = [(where, {**absent, **value} if isinstance(value, dict) else value) for where, value in read_jsonl(path)]
    return [decode(kind, value, where) for where, value in lines]
