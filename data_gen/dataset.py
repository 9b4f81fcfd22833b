"""``build_dataset``: the tasks of a recipe's ``dataset`` section, made by the environment's own builder.

The client's journal keeps each reply when it arrives, with a digest of its request: only changed requests are sent
again.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from reflectrl.config import Recipe
from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.extras import Inquiry
from reflectrl.core.messages import BadReply, asked_again
from reflectrl.core.registry import env_class
from reflectrl.core.run_files import CALLS, DATASET
from reflectrl.core.stop import run_async
from reflectrl.data_gen.cost import estimate_files
from reflectrl.endpoint.account import Account, Usage
from reflectrl.endpoint.journal import Journal, RejectedReply

if TYPE_CHECKING:  # imported only if a chat model is asked: openai takes a second
    from reflectrl.endpoint.client import ChatClient

Progress = Callable[[int, int, str], None]
"""Callback that receives the number done, the number wanted, and the name of what is counted."""


def build_dataset(
    recipe: Recipe,
    run: Path,
    account: Account,
    progress: Progress | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
    dry_run: bool = False,
) -> Usage | None:
    """Let the environment of ``recipe`` write ``run/dataset`` once, if the recipe has a dataset section.

    ``tell`` gets a sentence on the chats to send and their cost, before which a dry run stops.

    Returns:
        Usage of the chat endpoint in this process; ``None`` if a dry run stopped before the chats.

    Raises:
        InvalidInput: an environment that builds no dataset, an invalid source or one that was given twice, too few
            questions, no key for the endpoint.
        WorkFailed: a source or the endpoint cannot be reached; replies that were paid for are kept.
    """
    section, folder = recipe.dataset, run / DATASET
    if section is None or folder.is_dir():
        return Usage()
    draft_dataset = env_class(recipe.env.name).extras().draft_dataset
    if draft_dataset is None:
        raise InvalidInput(
            f"environment {recipe.env.name!r} builds no dataset; remove the recipe's section 'dataset', or choose an "
            "environment whose extras() has a builder."
        )
    with tempfile.TemporaryDirectory(prefix="reflectrl-") as place:
        if progress is not None:
            progress(0, len(section.repositories) + len(section.held_out), "fetching repositories")
        draft = draft_dataset(
            section.repositories,
            Path(place),
            held_out=section.held_out,
            files=section.files,
            per_file=section.per_file,
            seed=recipe.seed,
            writer=section.writer,
        )
        replies: list[str | None] = []
        usage = Usage()
        if section.writer == "openai":
            from reflectrl.endpoint.client import ChatClient

            endpoint = replace(section.endpoint, max_tokens=max(section.endpoint.max_tokens, draft.reply_tokens))
            client = ChatClient(endpoint, Journal(run / CALLS / "writer"), account, dry=dry_run)
            inquiries = draft.inquiries
            estimate = estimate_files([inquiry.chat for inquiry in inquiries], draft.reply_tokens)
            tell(estimate.sentence(client.endpoint, client.journal.replies))
            if dry_run:
                return None
            replies = run_async(_ask_all(client, inquiries, progress))
            usage = client.usage
        if left_out := draft.write(folder, replies):
            tell(f"questions left out: {left_out}")
    return usage


async def _ask_all(client: ChatClient, inquiries: Sequence[Inquiry], progress: Progress | None) -> list[str | None]:
    """Return the replies in order; ``None`` for an inquiry whose second reply was not usable either."""
    replies: dict[int, str | None] = {}
    waiting = iter(enumerate(inquiries))

    def report() -> None:
        if progress is not None:
            progress(len(replies), len(inquiries), "files with a reply")

    async def work() -> None:
        for number, inquiry in waiting:  # one shared iterator: a worker whose inquiry failed stops, the others continue
            replies[number] = await _ask_twice(client, inquiry)
            report()

    report()
    async with client:
        workers = (work() for _ in range(client.endpoint.concurrency))
        outcomes = await asyncio.gather(*workers, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
    return [replies[number] for number in range(len(inquiries))]


async def _ask_twice(client: ChatClient, inquiry: Inquiry) -> str | None:
    """Return a usable reply, with one retry; ``client`` itself would count the first reply as a failure."""
    chat = inquiry.chat
    try:
        for _ in range(2):
            reply = (await client.ask(chat, str)).value
            try:
                inquiry.check(reply)
                return reply
            except BadReply as complaint:
                chat = asked_again(chat, reply, str(complaint))
    except RejectedReply:
        pass
    except WorkFailed as error:
        raise WorkFailed(f"no questions about {inquiry.subject!r}: {error}") from error
    return None
