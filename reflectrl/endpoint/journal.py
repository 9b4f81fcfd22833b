"""``Journal``: all requests and paid replies of a run folder, so that after a kill no reply is paid for twice.

The key of a reply is a digest of the endpoint and the chat. A request is on disk before it is sent, and its reply
before it is used. A restarted process therefore makes the same calls, reads the same replies, gets the same result, and
knows of requests that were under way when the process before it ended: they have no reply, but may have been charged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from reflectrl.core import WorkFailed
from reflectrl.core.files import locked
from reflectrl.core.jsonl import append_jsonl, decode, read_jsonl
from reflectrl.core.messages import Messages
from reflectrl.endpoint.account import Tokens

REPLIES = "replies.jsonl"
REJECTED = "rejected.jsonl"
SERVERS = "servers.jsonl"

T = TypeVar("T")


@dataclass(frozen=True)
class PaidReply:
    """One line of ``replies.jsonl``: a request before it is sent, or the reply to the last request of that call."""

    asked: str
    """Digest of the chat and of the endpoint settings that influence a reply."""
    text: str | None
    """The reply's text; ``None`` for a request, for a reply without a usable text, and to delete an earlier one."""
    tokens: Tokens
    """Tokens that were charged; of a request, the most that may be."""
    batch: bool
    """True for a reply of OpenAI's Batch mode."""
    cut: bool = False
    """True if ``max_tokens`` truncated the reply, so that it cannot be used."""
    words: str = ""
    """Whole reply of the model where ``text`` is only the part that could be used; else empty."""
    sent: bool = False
    """True for a request."""


@dataclass(frozen=True)
class RejectedCall:
    """One line of ``rejected.jsonl``: a chat, and why none of its replies could be used."""

    asked: str
    reason: str
    chat: tuple[Mapping[str, str], ...]


@dataclass(frozen=True)
class Server:
    """One line of ``servers.jsonl``: a server that continues token ids, as it describes itself."""

    address: str
    model: str
    root: str
    """Folder or name of the model's weights, on the server's machine; empty where the server does not say."""
    version: str
    """Version of the server's software; empty where it does not say."""
    max_model_len: int | None
    """Maximum length of a text in tokens; ``None`` where the server does not say."""


class RejectedReply(WorkFailed):
    """A call was given up after ``max_attempts`` unusable replies; other calls continue."""


class Journal:
    """Paid replies and rejected calls of one role in one run folder.

    Args:
        folder: holds ``replies.jsonl`` and ``rejected.jsonl``; ``None`` to remember neither replies nor
            rejections, which are only counted.
        read_only: write no new ones into the folder.

    Raises:
        InvalidInput: a file is damaged or has another format.
    """

    def __init__(self, folder: Path | None = None, *, read_only: bool = False) -> None:
        self._folder = folder
        self._read_only = read_only
        self._replies: dict[str, str] = {}
        self._rejected: dict[str, str] = {}
        self._forgotten = 0  # rejected calls, where no folder remembers which
        self.cut: set[str] = set()
        """Calls whose replies ``max_tokens`` truncated."""
        self.batched: dict[str, Tokens] = {}
        """The most that each request in Batch mode without a reply may cost, by its call."""
        self.paid: list[tuple[Tokens, bool]] = []
        """What earlier processes paid: the tokens of each reply, the most tokens of each request without one, and
        whether it was in Batch mode."""
        if folder is not None:
            for reply in read_replies(folder):
                self._remember(reply)
                self.paid.append((reply.tokens, reply.batch))
            for call in _lines(folder / REJECTED, RejectedCall):
                self._rejected[call.asked] = call.reason

    @property
    def role(self) -> str:
        """Name of the folder, that of the role; empty without one."""
        return "" if self._folder is None else self._folder.name

    @property
    def replies(self) -> int:
        """Number of calls whose reply is known."""
        return len(self._replies)

    @property
    def rejected(self) -> int:
        """Number of rejected calls so far."""
        return len(self._rejected) + self._forgotten

    @property
    def rejected_path(self) -> Path | None:
        """File of the rejected calls; a call whose line is deleted is made again. ``None`` if none is written."""
        return None if self._folder is None or self._read_only else self._folder / REJECTED

    def known(self, asked: str) -> str | None:
        """Return the known reply to a call, or ``None``.

        Raises:
            RejectedReply: the call was rejected.
        """
        if asked in self._rejected:
            raise RejectedReply(self._rejected[asked])
        return self._replies.get(asked)

    def send(self, most: Mapping[str, Tokens], *, batch: bool = False) -> None:
        """Append requests, before they are sent: by their calls, the most tokens that each may be charged for."""
        requests = [PaidReply(asked, None, tokens, batch, sent=True) for asked, tokens in most.items()]
        self._append(REPLIES, *requests)
        for request in requests:
            self._remember(request)

    def add(self, reply: PaidReply) -> None:
        """Append a reply to the file, if it may be written; it is on disk when this returns."""
        self._append(REPLIES, reply)
        self._remember(reply)

    def reject(self, asked: str, chat: Messages, reason: str, bad: Sequence[str] = ()) -> None:
        """Reject a call, and delete its ``bad`` replies, so that a repetition gets new ones."""
        self._append(REJECTED, RejectedCall(asked, reason, tuple(chat)))
        if self._folder is None:
            self._forgotten += 1
        else:
            self._rejected[asked] = reason
        for deleted in bad:
            self.add(PaidReply(deleted, None, Tokens(), batch=False))

    def add_servers(self, servers: Sequence[Server]) -> None:
        """Append to ``servers.jsonl`` which servers answer from now on, unless the last lines say so."""
        known = _lines(self._folder / SERVERS, Server) if self._folder is not None else []
        if known[-len(servers) :] != [*servers]:
            self._append(SERVERS, *servers)

    def _append(self, name: str, *lines: PaidReply | RejectedCall | Server) -> None:
        if self._folder is None or self._read_only:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with locked(self._folder):  # a line of another thread or process stays whole
            append_jsonl(self._folder / name, lines)

    def _remember(self, reply: PaidReply) -> None:
        if reply.sent:
            if reply.batch:
                self.batched[reply.asked] = reply.tokens
            return
        self.batched.pop(reply.asked, None)
        (self.cut.add if reply.cut else self.cut.discard)(reply.asked)
        if reply.text is None:
            self._replies.pop(reply.asked, None)
        elif self._folder is not None:
            self._replies[reply.asked] = reply.text


def read_replies(folder: Path) -> list[PaidReply]:
    """Return the replies in ``folder``, and the requests that have none; both were paid for, or may have been.

    Raises:
        InvalidInput: the file is damaged.
    """
    lines = _lines(folder / REPLIES, PaidReply)
    waiting: dict[str, int] = {}
    answered: set[int] = set()
    for place, line in enumerate(lines):
        if line.sent:  # a request of the same call before it has got no reply
            waiting[line.asked] = place
        elif line.asked in waiting:
            answered.add(waiting.pop(line.asked))
    return [line for place, line in enumerate(lines) if place not in answered]


def _lines(path: Path, kind: type[T]) -> list[T]:
    lines = read_jsonl(path, skip_unfinished=True) if path.exists() else ()
    return [decode(kind, value, where) for where, value in lines]
