"""``ask_chat``: a chat model's questions about every file of a repository.

The client's journal keeps each reply as it comes, by what was asked: an edited file is the only one asked about again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.chat import BadReply, Messages
from reflectrl.endpoint.journal import RejectedReply
from reflectrl.prompts.questions import question_chat, read_questions

if TYPE_CHECKING:  # openai takes a second to import
    from reflectrl.endpoint.chat import ChatClient
    from reflectrl.endpoint.endpoint import Endpoint

Pairs = tuple[tuple[str, str], ...]
"""(question, answer), as many as the model wrote."""


def reply_tokens(per_file: int) -> int:
    """How many tokens a reply with ``per_file`` questions may need: an analysis, and one or two sentences an entry."""
    return 200 + 120 * per_file


async def ask_chat(
    client: ChatClient,
    files: Sequence[tuple[str, str]],
    *,
    per_file: int,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Pairs]:
    """Ask about all files, ``client.endpoint.concurrency`` at a time.

    Args:
        client: opened and closed here; its ``usage`` tells afterwards what this call cost.
        files: (path, text) of each file, every path once.
        per_file: at most so many questions a file.
        progress: told of (files with a reply, files).

    Returns:
        The questions of each path, in the order of ``files``; none where the model wrote none although asked twice, or
        gave no usable reply.

    Raises:
        InvalidInput: numbers that cannot work.
        WorkFailed: the endpoint failed; the other files' replies are kept and used by the next call.

    """
    _check(client.endpoint, per_file)
    chats = {path: question_chat(path, text, per_file) for path, text in files}
    questions: dict[str, Pairs] = {}
    waiting = iter(chats)

    def tell() -> None:
        if progress is not None:
            progress(len(questions), len(chats))

    async def work() -> None:
        for path in waiting:  # shared: each file goes to one worker, and a worker whose file failed stops
            questions[path] = await _ask(client, chats[path], path, per_file)
            tell()

    tell()
    async with client:
        workers = (work() for _ in range(client.endpoint.concurrency))
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
    return {path: questions[path] for path in chats}


def _check(endpoint: Endpoint, per_file: int) -> None:
    if per_file < 1:
        raise InvalidInput(f"{per_file} questions a file were asked for; expected at least 1.")
    if endpoint.max_tokens < reply_tokens(per_file):
        raise InvalidInput(
            f"the endpoint's max_tokens={endpoint.max_tokens} would cut off replies with {per_file} questions; "
            f"expected at least {reply_tokens(per_file)}: raise it, or ask for fewer questions a file."
        )


async def _ask(client: ChatClient, chat: Messages, path: str, per_file: int) -> Pairs:
    """The questions about one file, those of a second reply if the first has none."""
    try:
        reply = (await client.ask(chat, str)).value
        try:
            return read_questions(reply, path, per_file)
        except BadReply as complaint:
            again = [{"role": "assistant", "content": reply}, {"role": "user", "content": str(complaint)}]
        return read_questions((await client.ask([*chat, *again], str)).value, path, per_file)
    except (BadReply, RejectedReply):
        return ()
    except WorkFailed as error:
        raise WorkFailed(f"no questions about {path!r}: {error}") from error
