"""``ChatClient``: one OpenAI-compatible chat endpoint behind one retry policy. The only importer of ``openai``.

The client library's own retries are off: they do not cover replies that arrive with status 200 and are broken, and they
repeat calls that no repetition can mend (an exhausted quota).
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, TypeVar

import openai

from reflectrl.core import InvalidInput, WorkFailed
from reflectrl.core.addresses import without_credentials
from reflectrl.core.chat import BadReply, Messages
from reflectrl.core.event_loop import run_async
from reflectrl.core.stop import tell_user
from reflectrl.endpoint.account import BATCH_DISCOUNT, Account, Usage
from reflectrl.endpoint.answers import Unusable, judge, tokens_of, words_of
from reflectrl.endpoint.endpoint import NO_KEY, OPENAI_URL, Endpoint
from reflectrl.endpoint.first_reply import FirstReply
from reflectrl.endpoint.journal import Journal, PaidReply, RejectedReply
from reflectrl.endpoint.transport import open_http, proxies

LONGEST_BACKOFF_S = 30.0
CUT = "Your reply was too long and was cut off. Answer again, completely, in fewer words."
"""What a model is told whose reply ``max_tokens`` ended before its end."""

T = TypeVar("T")


@dataclass(frozen=True)
class Reply(Generic[T]):
    """What was read out of a model's words."""

    value: T
    tokens: int
    """Completion tokens; 0 where the endpoint does not say, and for words that were paid for earlier."""


class ChatClient:
    """Asks one endpoint. Use ``ask_many``, or ``async with client:`` and ``ask``.

    Args:
        endpoint: who is asked, and how.
        journal: keeps what is paid for.
        account: counts the money.
        tell: given a line when a first reply takes long.

    Raises:
        InvalidInput: no key, an address that cannot be one, a limit on money without a price, or variables of the
            environment with which no connection can be set up.

    """

    def __init__(
        self,
        endpoint: Endpoint,
        journal: Journal | None = None,
        account: Account | None = None,
        tell: Callable[[str], None] = tell_user,
    ) -> None:
        """Read the key; nothing is sent yet."""
        self.endpoint = endpoint
        self.journal = journal or Journal()
        self.usage = Usage()
        self._account = account or Account()
        self._account.check_price(str(endpoint), endpoint.price)
        self._key = endpoint.key()
        self._not_before = 0.0
        self._http: Any = open_http()  # before work starts, to be used by the first that is opened
        self._api: openai.AsyncOpenAI | None = None
        self._first = FirstReply(str(endpoint), endpoint.notice_s, tell)
        self._asking: dict[str, asyncio.Task[Reply[str]]] = {}
        self._posting: set[asyncio.Task[Any]] = set()
        self._leaving = False
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._runner = asyncio.Runner()

    async def __aenter__(self) -> ChatClient:
        """Open the connections; they belong to the running event loop."""
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections, once the replies that are under way, and will be paid for, have come."""
        await self._leave()
        if self._api is not None:
            await self._api.close()
        self._api = None

    def ask_many(
        self,
        chats: Sequence[Messages],
        reads: Sequence[Callable[[str], T]],
        draws: Sequence[str] | None = None,
        instead: T | None = None,
    ) -> list[Reply[T]]:
        """Ask all chats, ``endpoint.concurrency`` at a time; replies in order. See ``ask``.

        The connections stay open for the next call, until the client is gone: a rollout asks at every step.

        Args:
            chats: what is asked.
            reads: what is made of each reply.
            draws: as in ``ask``.
            instead: stands for a reply that is rejected; ``None`` to raise.

        """
        if self._api is None:
            weakref.finalize(self, _hang_up, self._runner, self._open())

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
            finally:  # after a failure, nobody waits for the others
                for ask in asked:
                    ask.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
                await self._leave()

        return run_async(ask_all(), self._runner)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work``, which asks this client, returns; whoever stops it waits for the replies under way."""
        return run_async(work)

    async def ask(self, chat: Messages, read: Callable[[str], T], draw: str = "") -> Reply[T]:
        """What ``read`` makes of the model's reply; where it raises ``BadReply``, the model is told and asked again.

        Args:
            chat: what is asked. Equal chats are asked once.
            read: makes a value of the model's words.
            draw: above temperature 0, tells apart calls that ask the same and are to be drawn independently.

        Raises:
            RejectedReply: ``endpoint.max_attempts`` times the model gave no usable reply; the call is set aside.
            WorkFailed: the endpoint cannot be used, the money is spent, or too many calls were set aside.

        """
        if self._api is None:
            raise InvalidInput("ChatClient.ask was called outside of `async with client:`; open the client first.")
        said, bad = chat, []
        for _ in range(self.endpoint.max_attempts):
            asked, words = self.endpoint.digest(said, draw), await self._words(said, draw)
            cut = self.journal.is_cut(asked)
            try:
                if cut:
                    raise BadReply(CUT)
                return Reply(read(words.value), words.tokens)
            except BadReply as complaint:
                failure = f"its last reply was {words.value[:80]!r}, and the answer to it: {complaint}"
                if cut:
                    limit = self.endpoint.max_tokens
                    failure = f"its reply was cut off (finish_reason length); raise max_tokens={limit} of the endpoint."
                bad.append(asked)
                said = [*said, _message("assistant", words.value), _message("user", str(complaint))]
        self.journal.known(bad[0])  # it may be set aside already
        raise self._rejection(bad[0], said, failure, bad)

    async def _words(self, chat: Messages, draw: str) -> Reply[str]:
        """The model's words: those that are there already, or those that somebody else waits for too, or new ones."""
        asked = self.endpoint.digest(chat, draw)
        known = self.journal.known(asked)
        if known is not None:
            self._count(kept=1)
            return Reply(known, 0)
        task = self._asking.get(asked)
        if task is None:
            task = self._asking[asked] = asyncio.create_task(self._fetch(asked, chat))
            task.add_done_callback(lambda _: self._asking.pop(asked))
            return await asyncio.shield(task)  # a reply that will be paid for is kept, although nobody waits for it
        self._count(kept=1)
        return replace(await asyncio.shield(task), tokens=0)

    async def _fetch(self, asked: str, chat: Messages) -> Reply[str]:
        try:
            async with self._slots:  # kept while waiting to ask again: a server in trouble is asked less
                return await self._repeat(lambda attempt: self._attempt(asked, chat, attempt))
        except Unusable as failure:
            if failure.answered:
                raise self._rejection(asked, chat, str(failure)) from failure
            raise self._failed(failure) from failure

    async def call(self, request: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
        """What another ``request`` of the client library returns, under the same policy.

        Raises:
            WorkFailed: the endpoint cannot be used.

        """
        try:
            return await self._repeat(lambda _: self._send(request))
        except Unusable as failure:
            raise self._failed(failure) from failure

    async def _repeat(self, attempt: Callable[[int], Awaitable[T]]) -> T:
        number = 1
        while not self._leaving:
            try:
                return await attempt(number)
            except Unusable as failure:
                if failure.final or number == self.endpoint.max_attempts:
                    raise
                if not self._leaving:
                    await self._pause(number, failure.wait_s)
            number += 1
        raise WorkFailed(f"{self.endpoint} was left before it gave a reply.")

    def _failed(self, failure: Unusable) -> WorkFailed:
        return WorkFailed(
            f"{self.endpoint} gave no usable reply in {self.endpoint.max_attempts} attempts: {failure} Check the "
            "server and the model, or raise max_attempts or timeout_s of the endpoint, then run again."
        )

    def _rejection(self, asked: str, chat: Messages, failure: str, bad: Sequence[str] = ()) -> WorkFailed:
        """Set a call aside, and say so; or say that this was one too many."""
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

    async def _pause(self, attempt: int, wait_s: float | None) -> None:
        if wait_s:  # the server's word holds for all calls, not only for this one
            self._not_before = max(self._not_before, time.monotonic() + wait_s)
            return
        longest = min(LONGEST_BACKOFF_S, self.endpoint.backoff_s * 2 ** (attempt - 1))
        # jitter decides when a call is repeated, never what it says, so it needs no seed
        await asyncio.sleep(random.uniform(longest / 2, longest))

    async def _attempt(self, asked: str, chat: Messages, attempt: int) -> Reply[str]:
        while (wait := self._not_before - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        body, most, paid = self.endpoint.body(chat), self.endpoint.most_cost(chat), 0.0
        while self._account.tight(most):
            await asyncio.sleep(0.02)
        self._account.promise(most)
        try:
            self._count(calls=1, retries=int(attempt > 1))
            # chat.completions.create takes a third more processor time a call, to check and wrap what goes by
            completion = await self._send(lambda api: api.post("/chat/completions", cast_to=object, body=body))
            paid = tokens_of(completion).cost(self.endpoint.price)
        finally:
            self._account.settle(most, paid)
        return self._keep(asked, completion, batch=False)

    def promise_batch(self, chats: Sequence[Messages]) -> None:
        """Look whether there is money for ``chats`` in Batch mode.

        Raises:
            WorkFailed: there might not be.

        """
        most = BATCH_DISCOUNT * sum(self.endpoint.most_cost(chat) for chat in chats)
        self._account.promise(most)
        self._account.settle(most, 0.0)

    def keep_batched(self, asked: str, completion: object) -> bool:
        """Keep a reply of Batch mode; False where it cannot be used, and the call has to be made again."""
        self._account.spent += tokens_of(completion).cost(self.endpoint.price, batch=True)
        try:
            self._keep(asked, completion, batch=True)
        except Unusable:
            return False
        return True

    def _keep(self, asked: str, completion: object, *, batch: bool) -> Reply[str]:
        """Count a reply and put it on the disk, before anybody reads it."""
        tokens = tokens_of(completion)
        cost = tokens.cost(self.endpoint.price, batch=batch)
        self._count(
            prompt_tokens=tokens.prompt, cached_tokens=tokens.cached, completion_tokens=tokens.completion, cost=cost
        )
        try:
            words = words_of(completion, self._safe)
        except Unusable:
            self.journal.add(PaidReply(asked, None, tokens, batch))
            raise
        self._count(cut=int(words.cut))
        text = self._clean(words.text)
        self.journal.add(PaidReply(asked, text, tokens, batch, words.cut))
        return Reply(text, tokens.completion)

    async def _send(self, request: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
        """One request, within its deadline; the library's own would run between bytes only."""
        seconds, task = self.endpoint.attempt_s, asyncio.current_task()
        if self._api is None or task is None:
            raise InvalidInput("ChatClient was asked outside of `async with client:`; open the client first.")
        self._posting.add(task)
        self._first.expect()
        try:
            answer = await asyncio.wait_for(request(self._api), seconds)
            self._first.came()
            return answer
        except TimeoutError as error:
            raise Unusable(f"no complete reply within timeout_s={seconds:g}.") from error
        except openai.APIStatusError as error:
            self._first.came()
            raise judge(
                self.endpoint, error.status_code, error.code, error.response.headers, self._safe(error.response.text)
            ) from None  # its text may hold the key
        except openai.APIConnectionError as error:
            through = f", through {proxies()}" if proxies() else ""
            raise Unusable(f"it cannot be reached ({self._safe(str(error.__cause__ or error))}{through}).") from None
        except (openai.APIResponseValidationError, ValueError, RecursionError) as error:  # of bytes, syntax, depth
            raise Unusable("its reply is not the JSON of a chat completion.", answered=True) from error
        finally:
            self._posting.discard(task)

    def _safe(self, text: str) -> str:
        """What a server said, short, without the key should it echo it."""
        line = " ".join(self._clean(without_credentials(text)).split())
        return line if len(line) <= 200 else f"{line[:197]}..."

    def _clean(self, text: str) -> str:
        """``text`` for a file: without the key, and without half of a surrogate pair, which is valid in JSON only."""
        hidden = text if self._key == NO_KEY else text.replace(self._key, "***")
        return hidden.encode(errors="replace").decode()

    def _count(self, **more: float) -> None:
        self.usage += Usage(**more)  # type: ignore[arg-type]

    def _open(self) -> openai.AsyncOpenAI:
        endpoint, http = self.endpoint, self._http or open_http()
        self._http = None
        given: dict[str, Any] = {"api_key": self._key, "max_retries": 0, "timeout": None, "http_client": http}
        if endpoint.azure_api_version is None:
            self._api = openai.AsyncOpenAI(base_url=endpoint.base_url or OPENAI_URL, **given)
        else:
            version = endpoint.azure_api_version
            self._api = openai.AsyncAzureOpenAI(azure_endpoint=endpoint.base_url or "", api_version=version, **given)
        self._slots, self._leaving = asyncio.Semaphore(endpoint.concurrency), False
        return self._api

    async def _leave(self) -> None:
        """Send nothing more, and keep the replies that are under way."""
        self._leaving = True
        self._first.leave()
        for task in self._asking.values():
            if task not in self._posting:
                task.cancel()
        while self._asking:  # whoever is given a reply may ask for more, and is refused
            await asyncio.gather(*self._asking.values(), return_exceptions=True)


def _hang_up(runner: asyncio.Runner, api: openai.AsyncOpenAI) -> None:
    """Close the connections and the event loop of a client that is gone."""

    def close() -> None:
        with runner:
            runner.run(api.close())

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        close()
    else:  # the client was collected in the middle of somebody else's event loop
        thread = threading.Thread(target=close)
        thread.start()
        thread.join()


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
