"""OpenAI's Batch mode: calls submitted together, and answered within a day at half the price.

The replies go to the journal, where gen-data finds them. Calls that still lack a reply then, such as corrections of an
invalid reply, are made in the ordinary way or in another round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar, cast

from reflectrl.core import InvalidInput
from reflectrl.core.files import write_text
from reflectrl.core.jsonl import decode, encode
from reflectrl.core.messages import Messages
from reflectrl.endpoint.client import ChatClient, Reply
from reflectrl.endpoint.journal import RejectedReply

MAX_BATCH_CALLS = 50_000
"""Calls in one batch, by OpenAI's rules."""
MAX_BATCH_BYTES = 200_000_000
"""Bytes in the file of one batch, by OpenAI's rules."""
PENDING_STATES = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that has not ended."""
OPEN_BATCHES = "batches.json"
"""File with the batches that were submitted and not yet collected."""

T = TypeVar("T")


@dataclass(frozen=True)
class OpenBatch:
    """A batch that was submitted, or is about to be, and was not yet collected."""

    file: str
    """Name of the uploaded file with its calls."""
    name: str
    """Name of the batch; empty until the server has said it."""
    calls: tuple[str, ...]

    def __str__(self) -> str:
        """Return the name of the batch, for messages."""
        return self.name or f"the batch of {self.file}"


class RecordingClient(ChatClient):
    """Replaces ``client`` while the teacher plays: records the calls that lack a reply, and returns empty replies.

    An invalid reply is not corrected here.
    """

    def __init__(self, client: ChatClient) -> None:
        super().__init__(client.endpoint, client.journal)
        self.calls: dict[str, Messages] = {}
        """Chats that lack a reply, by their digests."""

    async def ask(self, chat: Messages, read: Callable[[str], T], draw: str = "") -> Reply[T]:  # noqa: ARG002
        """Record the call if it lacks a reply, and return an empty reply."""
        asked = self.endpoint.digest(chat, draw)
        if self.journal.known(asked) is None:
            self.calls[asked] = chat
        return Reply(cast(T, ""), 0)


class Batches:
    """Batches of one role in the ``folder`` of its calls; the journal of ``client`` receives the replies."""

    def __init__(self, folder: Path, client: ChatClient, max_calls: int = MAX_BATCH_CALLS) -> None:
        self._path = folder / OPEN_BATCHES
        self._client = client
        self._max_calls = max_calls

    def check_collected(self) -> None:
        """Check that no batch is open.

        Raises:
            InvalidInput: batches were submitted, and not yet collected.
        """
        if batches := self._open():
            raise InvalidInput(
                f"{', '.join(map(str, batches))} of this folder were submitted and not yet collected; collect first "
                f"(--batch collect), or delete {self._path} to give them up."
            )

    async def submit(self, calls: Mapping[str, Messages]) -> str:
        """Submit ``calls``, chats by their digests, and return a report.

        Raises:
            InvalidInput: earlier batches were not collected.
            WorkFailed: the endpoint refused, or the budget does not suffice.
        """
        submitted: list[OpenBatch] = []
        async with self._client:
            await self._find_lost()
            self.check_collected()
            if not calls:
                return "batch: every call has its reply; run gen-data without --batch to write the rows."
            self._client.check_batch_cost(calls.values())
            for portion in _portions(starmap(self._line, calls.items()), self._max_calls):
                lines = "".join(line for _, line in portion).encode()
                file = await self._client.call(partial(_upload, lines=lines))
                batch = OpenBatch(file, "", tuple(asked for asked, _ in portion))
                self._note([*submitted, batch])  # what may be charged is on disk before it is, in case of a kill
                self._client.send_batched({asked: calls[asked] for asked in batch.calls})
                submitted.append(replace(batch, name=await self._create(file)))
                self._note(submitted)
        names = ", ".join(batch.name for batch in submitted)
        return f"batch: {len(calls):,} calls were submitted as {names}; fetch them with --batch collect."

    async def _create(self, file: str) -> str:

        async def create(api: Any) -> str:
            if name := await _created(api, file):  # by an attempt whose reply was lost
                return name
            batch = await api.batches.create(
                input_file_id=file, endpoint="/v1/chat/completions", completion_window="24h"
            )
            return str(batch.id)

        return await self._client.call(create)

    async def _find_lost(self) -> tuple[OpenBatch, ...]:
        """Return the open batches, all with names; calls that the server has made no batch of end, and cost nothing."""
        noted = self._open()
        found = []
        for batch in noted:
            name = batch.name or await self._client.call(partial(_created, file=batch.file))
            if name:
                found.append(replace(batch, name=name))
            else:
                self._end(batch)
        if tuple(found) != noted:
            self._note(found)
        return tuple(found)

    async def collect(self) -> str:
        """Fetch the replies of batches that have ended, and return a report.

        Raises:
            InvalidInput: no batch is open.
            WorkFailed: the endpoint failed.
        """
        if not self._open():
            raise InvalidInput("no batch was submitted from this folder; begin with --batch submit.")
        report: list[str] = []
        async with self._client:
            waiting = [*await self._find_lost()]
            for batch in tuple(waiting):
                ended, state = await self._fetch(batch)
                report.append(f"batch {batch.name} is {state}")
                if ended:
                    waiting.remove(batch)
                    self._note(waiting)
        return "\n".join(report) or "batch: the server has received none, and charges nothing; submit again."

    async def _fetch(self, open_batch: OpenBatch) -> tuple[bool, str]:
        """Save the replies of a batch if it has ended; return whether it has, and its state in words."""
        batch = await self._client.call(lambda api: api.batches.retrieve(open_batch.name))
        if batch.status in PENDING_STATES:
            done = f", {batch.request_counts.completed:,} calls done" if batch.request_counts else ""
            return False, f"{batch.status}{done}; fetch again later."
        results: list[bool] = []
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            content = await self._download(file)
            results += [self._keep(line) for line in content.split("\n") if line]
        self._end(open_batch)
        message = batch.errors and batch.errors.data and batch.errors.data[0].message
        why = f" It said: {message}" if message else ""
        return True, f"{batch.status}: {sum(results):,} replies kept, {results.count(False):,} calls without one.{why}"

    def _end(self, batch: OpenBatch) -> None:
        """Write to the journal that the calls of a batch which got no reply cost nothing."""
        for asked in batch.calls:
            if asked in self._client.journal.batched:
                self._client.keep_batched(asked)

    async def _download(self, file: str) -> str:
        return str((await self._client.call(lambda api: api.files.content(file))).text)

    def _line(self, asked: str, chat: Messages) -> tuple[str, str]:
        request = {"method": "POST", "url": "/v1/chat/completions", "body": self._client.endpoint.body(chat)}
        return asked, json.dumps({"custom_id": asked, **request}) + "\n"

    def _keep(self, line: str) -> bool:
        """Write the reply of one result line to the journal; return False if the line has none."""
        try:
            result = json.loads(line)
            asked, response = result["custom_id"], result["response"]
            if response["status_code"] != 200:
                return False
            body, journal = response["body"], self._client.journal
            if journal.known(asked) is not None:
                return True
        except (ValueError, RecursionError, KeyError, TypeError):
            return False
        except RejectedReply:  # its reply is charged all the same
            self._client.keep_batched(asked, body)
            return False
        return self._client.keep_batched(asked, body)

    def _open(self) -> tuple[OpenBatch, ...]:
        if not self._path.exists():
            return ()
        try:
            return decode(tuple[OpenBatch, ...], json.loads(self._path.read_text(encoding="utf-8")), str(self._path))
        except (ValueError, RecursionError, InvalidInput) as error:
            raise InvalidInput(
                f"{self._path} is not a list of batches; correct it, or delete it to give them up."
            ) from error

    def _note(self, batches: Sequence[OpenBatch]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, json.dumps(encode(batches)) + "\n")


async def _upload(api: Any, lines: bytes) -> str:
    """Upload a file of calls, which costs nothing, and return its name."""
    return str((await api.files.create(file=("calls.jsonl", lines), purpose="batch")).id)


async def _created(api: Any, file: str) -> str:
    """Return the name of the batch that was created of an uploaded file; empty if there is none."""
    async for batch in api.batches.list(limit=100):
        if batch.input_file_id == file:
            return str(batch.id)
    return ""


def _portions(lines: Iterable[tuple[str, str]], max_calls: int) -> Iterator[list[tuple[str, str]]]:
    """Split lines, with their calls, into portions that fit into one batch."""
    portion: list[tuple[str, str]] = []
    size = 0
    for asked, line in lines:
        if portion and (len(portion) == max_calls or size + len(line.encode()) > MAX_BATCH_BYTES):
            yield portion
            portion, size = [], 0
        portion.append((asked, line))
        size += len(line.encode())
    if portion:
        yield portion
