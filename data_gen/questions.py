"""``ask_chat``: a chat model's questions about every file of a repository; each reply is kept as it comes.

A kept reply is known by a digest of everything that was asked, and of whom. So what is kept of other files, other
settings or an older text of a file is left aside without a word, and an edited file is the only one asked about again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.prompts.chat import BadReply, Messages
from reflectrl.prompts.questions import question_chat, read_questions
from reflectrl.rollout.jsonl import append_jsonl, decode, mend_tail, read_jsonl

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.players.chat import ChatClient, Endpoint

Pairs = tuple[tuple[str, str], ...]
"""(question, answer), as many as the model wrote."""


@dataclass(frozen=True)
class KeptReply:
    """One line of the partial file."""

    asked: str
    """Digest of the chat and of the endpoint's settings that shape a reply."""
    reply: str
    """The model's words, whether or not there is a question in them."""


def reply_tokens(per_file: int) -> int:
    """How many tokens a reply with ``per_file`` questions may need: an analysis, and one or two sentences an entry."""
    return 200 + 120 * per_file


async def ask_chat(
    client: ChatClient,
    files: Sequence[tuple[str, str]],
    *,
    per_file: int,
    partial: Path,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Pairs]:
    """Ask about all files, ``client.endpoint.concurrency`` at a time.

    Args:
        client: opened and closed here; its ``usage`` tells afterwards what this call cost.
        files: (path, text) of each file, every path once.
        per_file: at most so many questions a file.
        partial: file of the replies so far, for the caller to delete when the questions are written elsewhere.
        progress: told of (files with a reply, files).

    Returns:
        The questions of each path, in the order of ``files``; none where the model wrote none although asked twice.

    Raises:
        InvalidInput: numbers that cannot work, or a partial file of another kind.
        WorkFailed: the endpoint failed; the other files' replies are kept and used by the next call.

    """
    _check(client.endpoint, per_file)
    chats = {path: question_chat(path, text, per_file) for path, text in files}
    digests = {path: _digest(client.endpoint, chat) for path, chat in chats.items()}
    kept = _kept(partial)
    replies = {path: kept[digest] for path, digest in digests.items() if digest in kept}
    waiting = iter([path for path in chats if path not in replies])

    def tell() -> None:
        if progress is not None:
            progress(len(replies), len(chats))

    async def work() -> None:
        for path in waiting:  # shared: each file goes to one worker, and a worker whose file failed stops
            reply = await _ask(client, chats[path], path, per_file)
            _keep(partial, KeptReply(digests[path], reply))
            replies[path] = reply
            tell()

    tell()
    async with client:
        workers = (work() for _ in range(client.endpoint.concurrency))
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
    return {path: _pairs(replies[path], path, per_file) for path in chats}


def _check(endpoint: Endpoint, per_file: int) -> None:
    if per_file < 1:
        raise InvalidInput(f"{per_file} questions a file were asked for; expected at least 1.")
    if endpoint.max_tokens < reply_tokens(per_file):
        raise InvalidInput(
            f"the endpoint's max_tokens={endpoint.max_tokens} would cut off replies with {per_file} questions; "
            f"expected at least {reply_tokens(per_file)}: raise it, or ask for fewer questions a file."
        )


async def _ask(client: ChatClient, chat: Messages, path: str, per_file: int) -> str:
    """The reply about one file, the second one if the first has no question."""
    try:
        reply = (await client.ask(chat, str)).value
        try:
            read_questions(reply, path, per_file)
        except BadReply as complaint:
            again = [{"role": "assistant", "content": reply}, {"role": "user", "content": str(complaint)}]
            reply = (await client.ask([*chat, *again], str)).value
    except WorkFailed as error:
        raise WorkFailed(f"no questions about {path!r}: {error}") from error
    return reply


def _pairs(reply: str, path: str, per_file: int) -> Pairs:
    try:
        return read_questions(reply, path, per_file)
    except BadReply:
        return ()


def _digest(endpoint: Endpoint, chat: Messages) -> str:
    asked = [endpoint.model, endpoint.base_url, endpoint.temperature, endpoint.max_tokens, chat]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _kept(partial: Path) -> dict[str, str]:
    mend_tail(partial)
    lines = read_jsonl(partial) if partial.exists() else ()
    found = [decode(KeptReply, value, where) for where, value in lines]
    return {line.asked: line.reply for line in found}


def _keep(partial: Path, line: KeptReply) -> None:
    append_jsonl(partial, [line])
    with partial.open("ab") as file:
        os.fsync(file.fileno())
