"""``ChatClient``: an OpenAI-compatible chat endpoint with retries, a journal and a budget."""

from __future__ import annotations

import asyncio
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar
from zlib import crc32

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.messages import BadReply, LabelChat, Messages, TokenPrompt, asked_again
from reflectrl.core.stop import run_async, tell_user
from reflectrl.endpoint.account import BATCH_DISCOUNT, Account, Tokens, Usage
from reflectrl.endpoint.api import Api, Dialect, close_left, hang_up
from reflectrl.endpoint.endpoint import TIMEOUT_S, Endpoint
from reflectrl.endpoint.journal import Journal, PaidReply, RejectedReply
from reflectrl.endpoint.replies import (
    LabelWays,
    Text,
    UnusableReply,
    error_inside,
    fields,
    read_continued,
    read_text,
    read_tokens,
)

MAX_BACKOFF_S = 30.0
"""Longest pause before a repetition, unless the server asks for another one."""
CUT = "Your reply was too long and was cut off. Answer again, completely, in fewer words."
"""Message to a model whose reply ``max_tokens`` truncated."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reply(Generic[T]):
    """Value that was read from a model's reply."""

    value: T
    tokens: int
    """Completion tokens; 0 if the endpoint reports none, and for a reply that was paid for earlier."""


class ChatClient:
    """Client of one chat endpoint. Use ``ask_many``, or ``async with client:`` and ``ask``.

    Args:
        endpoint: model, address and limits.
        journal: keeps the paid replies.
        account: budget that the calls are paid from.
        tell: receives a line when no reply has come for a while.
        skip_failures: reject a call that got no answer in any attempt; otherwise, such a call ends the work.
        dry: for a client that only describes its calls: it asks nothing, and needs neither a key nor a price.

    Raises:
        InvalidInput: the key is missing, the address is invalid, the budget is limited but no price is known, or
            environment variables for proxies or certificates cannot be used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal | None = None,
        account: Account | None = None,
        tell: Callable[[str], None] = tell_user,
        *,
        skip_failures: bool = False,
        dry: bool = False,
    ) -> None:
        self._skip_failures = skip_failures
        self.endpoint = endpoint
        self.journal = journal or Journal()
        self.usage = Usage()
        self._account = account or Account()
        if not endpoint.is_own and not dry:
            self._account.check_price(str(endpoint), endpoint.price, self.journal.role)
        self._not_before = 0.0
        self._api = Api(endpoint, "" if dry else endpoint.key(), tell)
        self._dialect = Dialect(endpoint)
        self.ways = LabelWays(endpoint)
        self._asking: dict[str, asyncio.Task[Reply[str]]] = {}
        self._runner = asyncio.Runner()

    async def __aenter__(self) -> ChatClient:
        """Open the connections; they belong to the running event loop."""
        self._open()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the connections, once the replies in flight, which will be paid for, have arrived."""
        await self._leave()
        await self._api.close()

    def ask_many(
        self,
        chats: Sequence[Messages],
        reads: Sequence[Callable[[str], T]],
        draws: Sequence[str] | None = None,
        instead: T | None = None,
    ) -> list[Reply[T]]:
        """Ask all chats, ``endpoint.concurrency`` at a time, and return the replies in order. See ``ask``.

        The connections stay open for the next call until the client is deleted: a rollout asks at every step.

        Args:
            chats: the chats.
            reads: for each chat, the function that reads a value from its reply.
            draws: as in ``ask``.
            instead: value for a rejected call; ``None`` to raise.
        """
        self._stay_open()

        async def ask_one(chat: Messages, read: Callable[[str], T], draw: str) -> Reply[T]:
            try:
                return await self.ask(chat, read, draw)
            except RejectedReply:
                if instead is None:
                    raise
                return Reply(instead, 0)

        async def ask_all() -> list[Reply[T]]:
            self._leaving = False
            asks = zip(chats, reads, draws or [""] * len(chats), strict=True)
            asked = [asyncio.create_task(ask_one(*one)) for one in asks]
            try:
                return await asyncio.gather(*asked)
            finally:  # after a failure, the others are cancelled
                for ask in asked:
                    ask.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
                await self._leave()

        return run_async(ask_all(), self._runner)

    def at_each(self, request: Callable[[Any], Awaitable[T]]) -> list[T]:
        """Send a ``request`` of the client library once to each address, and return what they answer.

        Raises:
            InvalidInput: one of them gives no usable answer, or not in time.
        """
        self._stay_open()

        async def ask_all() -> list[T]:
            return [await self._at(place, request) for place in range(len(self.endpoint.addresses))]

        return run_async(ask_all(), self._runner)

    async def _at(self, place: int, request: Callable[[Any], Awaitable[T]]) -> T:
        try:
            return await self._api.send(request, place, self.endpoint.timeout_s or TIMEOUT_S)
        except (UnusableReply, WorkFailed) as failure:
            raise InvalidInput(
                f"the server of model {self.endpoint.model!r} at {self.endpoint.addresses[place]} cannot be used: "
                f"{str(failure).rstrip('.')}; start it or correct its address (docs/scaling.md has the command), then "
                "run again."
            ) from failure
        finally:
            self._api.rest()

    def _stay_open(self) -> None:
        if not self._api.is_open:
            close_left()
            self._open()
            weakref.finalize(self, hang_up, self._runner, self._api.close)

    async def ask(self, chat: Messages, read: Callable[[str], T], draw: str = "") -> Reply[T]:
        """Ask the model, and return the value that ``read`` finds in its reply.

        Where ``read`` raises ``BadReply``, its message is sent to the model, which is asked again.

        Args:
            chat: the chat. Equal chats are asked once.
            read: reads a value from the reply's text.
            draw: above temperature 0, distinguishes equal chats that are to be sampled independently.

        Raises:
            RejectedReply: the model gave no usable reply in ``endpoint.max_attempts`` attempts.
            WorkFailed: the endpoint cannot be used, the budget is spent, or too many calls were rejected.
        """
        if not self._api.is_open:
            raise InvalidInput("ChatClient.ask was called outside of `async with client:`; open the client first.")
        messages = chat
        bad: list[str] = []
        for _ in range(self.endpoint.max_attempts):
            asked, text = self.endpoint.digest(messages, draw), await self._text(messages, draw, again=bool(bad))
            cut = asked in self.journal.cut
            try:
                if cut:
                    raise BadReply(CUT)
                return Reply(read(text.value), text.tokens)
            except BadReply as complaint:
                failure = f"its last reply was {text.value[:80]!r}, and the answer to it: {complaint}"
                if cut:
                    limit = self.endpoint.max_tokens
                    failure = f"its reply was cut off (finish_reason length); raise max_tokens={limit} of the endpoint."
                bad.append(asked)
                messages = asked_again(messages, text.value, str(complaint))
        self.journal.known(bad[0])  # raises if it is rejected already
        raise self._rejection(bad[0], messages, failure, bad)

    async def _text(self, chat: Messages, draw: str, *, again: bool) -> Reply[str]:
        """Return a reply's text from the journal, from an equal call in flight, or from a new call.

        ``again``: the chat repeats one whose reply was not usable.
        """
        asked = self.endpoint.digest(chat, draw)
        known = self.journal.known(asked)
        if known is not None:
            self._count(kept=1)
            return Reply(known, 0)
        task = self._asking.get(asked)
        if task is None:
            self._count(retries=int(again))
            task = self._asking[asked] = asyncio.create_task(self._fetch(asked, chat))
            task.add_done_callback(partial(self._answered, asked))
            return await asyncio.shield(task)  # a paid reply is kept even if the caller is cancelled
        self._count(kept=1)
        return replace(await asyncio.shield(task), tokens=0)

    def _answered(self, asked: str, task: asyncio.Task[Reply[str]]) -> None:
        del self._asking[asked]
        if not task.cancelled():
            task.exception()  # asyncio would print the error of a task whose caller was cancelled

    async def _fetch(self, asked: str, chat: Messages) -> Reply[str]:
        try:
            async with self._slots:  # held between attempts: a server in trouble gets fewer requests
                return await self._repeat(lambda attempt: self._attempt(asked, chat, attempt))
        except UnusableReply as failure:
            # a model that continues token ids gives no bad replies, so the server is to blame, and may be repaired
            if (failure.answered or self._skip_failures) and not isinstance(chat, TokenPrompt):
                raise self._rejection(asked, chat, str(failure)) from failure
            raise self._failed(failure) from failure

    async def call(self, request: Callable[[Any], Awaitable[T]]) -> T:
        """Send another ``request`` of the client library with the same retries, and return its result.

        Raises:
            WorkFailed: the endpoint cannot be used.
        """
        try:
            return await self._repeat(lambda _: self._api.send(request))
        except UnusableReply as failure:
            raise self._failed(failure) from failure

    async def _repeat(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        number, pauses, start, longest = 1, 0, time.monotonic(), self.endpoint.attempt_s
        while not self._leaving:
            try:
                return await attempt(number)
            except UnusableReply as failure:
                if failure.free:
                    continue
                most_s = {429: longest * self.endpoint.max_attempts, 503: longest * self.endpoint.is_own}
                patient = time.monotonic() - start < most_s.get(failure.status, 0.0)  # with a rate limit, or a start
                if failure.final or (number == self.endpoint.max_attempts and not patient):
                    raise
                if not self._leaving:
                    await self._pause(pauses := pauses + 1, failure.wait_s)
            number += not patient
        raise WorkFailed(f"{self.endpoint} was closed before it gave a reply.")

    def _failed(self, failure: UnusableReply) -> WorkFailed:
        return WorkFailed(
            f"{self.endpoint} gave no usable reply in {self.endpoint.max_attempts} attempts: {failure} Check the "
            "server and the model, or raise max_attempts or timeout_s of the endpoint, then run again."
        )

    def _rejection(self, asked: str, chat: Messages, failure: str, bad: Sequence[str] = ()) -> WorkFailed:
        """Reject a call, and return the error to raise: ``WorkFailed`` if that exceeds ``max_rejected``."""
        reason = f"{self.endpoint} gave no usable reply in {self.endpoint.max_attempts} attempts: {failure}"
        self.journal.reject(asked, chat, reason, bad)
        self._count(rejected=1)
        most, path = self.endpoint.max_rejected, self.journal.rejected_path
        if self.journal.rejected <= most:
            return RejectedReply(reason)
        return WorkFailed(
            f"{self.journal.rejected} calls were set aside, more than max_rejected={most} of the endpoint: {reason} "
            f"Check the model{f'; all are in {path}, and without that file they are asked again' if path else ''}."
        )

    async def _pause(self, number: int, wait_s: float | None) -> None:
        pause_s = min(MAX_BACKOFF_S, self.endpoint.backoff_s * 2 ** min(number - 1, 30))
        if wait_s:  # holds for all calls, not only for this one
            self._not_before = max(self._not_before, time.monotonic() + wait_s)
        # jitter influences only the time of a call, so it needs no seed; after a wait for all, it spreads their calls
        await asyncio.sleep(random.uniform(pause_s / 2, pause_s))

    async def _attempt(self, asked: str, chat: Messages, attempt: int) -> Reply[str]:
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        way, most = self.ways.of(chat), self.endpoint.most(chat)
        body, max_cost = self._dialect.body(chat, fields(way, chat)), most.cost(self.endpoint.price)
        while self._account.must_wait(max_cost):
            await asyncio.sleep(0.02)
        self._account.reserve(max_cost)
        paid: Tokens | None = Tokens()

        def unpaid() -> None:
            nonlocal paid
            paid = Tokens()

        try:
            self.journal.send({asked: most})
            paid = None  # until the server says how many, it may charge any number of tokens up to `most`
            self._count(calls=1, retries=int(attempt > 1))
            completion = await self._api.complete(body, unpaid, crc32(chat[-1]["content"].encode()) + attempt - 1)
            paid = read_tokens(completion)
            if error := error_inside(completion):
                raise self._api.failure(*error, str(completion), {})
            if paid == Tokens() and self.endpoint.price:  # a server that does not count may charge any number
                paid = most
        except (WorkFailed, UnusableReply) as failure:
            if paid is not None:
                self.journal.add(PaidReply(asked, None, paid, batch=False))
            if self._dialect.refused(body, failure) or self.ways.refused(way, failure, attempt):
                raise UnusableReply(str(failure), free=True) from None
            raise
        finally:
            cost = (most if paid is None else paid).cost(self.endpoint.price)
            self._account.settle(max_cost, cost)
            if paid is None:
                self._count(unanswered=1, cost=cost)
        return self._keep(asked, completion, paid, chat, way)

    def check_batch_cost(self, chats: Iterable[Messages]) -> None:
        """Check that the budget suffices for ``chats`` in Batch mode.

        Raises:
            WorkFailed: they might exceed the limit.
        """
        max_cost = BATCH_DISCOUNT * sum(self.endpoint.max_cost(chat) for chat in chats)
        self._account.reserve(max_cost)
        self._account.settle(max_cost, 0.0)

    def send_batched(self, chats: Mapping[str, Messages]) -> None:
        """Write calls that are about to be sent in Batch mode to the journal: they count as spent until they end."""
        self.journal.send({asked: self.endpoint.most(chat) for asked, chat in chats.items()}, batch=True)
        self._account.spent += sum(self._batch_cost(self.journal.batched[asked]) for asked in chats)

    def keep_batched(self, asked: str, completion: object = None) -> bool:
        """Keep a reply of Batch mode; return False if there is none, or none that can be used."""
        most, paid = self.journal.batched.get(asked, Tokens()), read_tokens(completion)
        self._account.spent += self._batch_cost(paid) - self._batch_cost(most)
        try:
            self._keep(asked, completion, paid, batch=True)
        except UnusableReply:
            return False
        return True

    def _batch_cost(self, tokens: Tokens) -> float:
        return tokens.cost(self.endpoint.price, batch=True)

    def _keep(
        self,
        asked: str,
        completion: object,
        tokens: Tokens,
        chat: Messages | None = None,
        way: str = "text",
        *,
        batch: bool = False,
    ) -> Reply[str]:
        """Count a reply and the ``tokens`` that were charged, and write it to the journal, before it is used."""
        cost = tokens.cost(self.endpoint.price, batch=batch)
        self._count(
            prompt_tokens=tokens.prompt, cached_tokens=tokens.cached, completion_tokens=tokens.completion, cost=cost
        )
        try:
            read: Callable[..., Text] = read_text
            if isinstance(chat, TokenPrompt):
                read = read_continued
            elif isinstance(chat, LabelChat):
                read = partial(self.ways.read, way, chat)
            reply = read(completion, self._api.safe)
            reply = reply.sentences if self.ways.lenient else reply
        except UnusableReply:
            self.journal.add(PaidReply(asked, None, tokens, batch))
            raise
        self._count(cut=int(reply.cut), lenient=int(bool(reply.words)))
        text = self._api.clean(reply.text)
        self.journal.add(PaidReply(asked, text, tokens, batch, reply.cut, self._api.clean(reply.words)))
        return Reply(text, read_tokens(completion).completion)

    def _count(self, **more: float) -> None:
        self.usage += Usage(**more)  # type: ignore[arg-type]

    def _open(self) -> None:
        self._api.open()
        self._slots, self._leaving = asyncio.Semaphore(self.endpoint.concurrency), False

    async def _leave(self) -> None:
        """Send no more requests, and wait for the replies in flight."""
        self._leaving = True
        self._api.rest()
        for task in self._asking.values():
            if task not in self._api.posting:
                task.cancel()
        while self._asking:  # a caller that gets its reply may ask again, and is refused
            await asyncio.gather(*self._asking.values(), return_exceptions=True)
