"""OpenAI's Batch mode: calls submitted together, and answered within a day at half the price.

The replies go to the journal, where gen-data finds them. Calls that still lack a reply then, such as corrections of an
invalid reply, are made in the ordinary way or in another round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, TypeVar, cast

from reflectrl.core import InvalidInput
from reflectrl.core.chat import Messages
from reflectrl.core.files import write_text
from reflectrl.endpoint.chat import ChatClient, Reply
from reflectrl.endpoint.journal import RejectedReply

MAX_BATCH_CALLS = 50_000
"""Calls in one batch, by OpenAI's rules."""
MAX_BATCH_BYTES = 200_000_000
"""Bytes in the file of one batch, by OpenAI's rules."""
PENDING_STATES = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that has not ended."""
OPEN_BATCHES = "batches.json"
"""File with the names of the batches that were submitted and not yet collected."""

T = TypeVar("T")


class RecordingClient(ChatClient):
    """Replaces ``client`` while the teacher plays: records the calls that lack a reply, and returns empty replies.

    An invalid reply is not corrected here.
    """

    def __init__(self, client: ChatClient) -> None:
        """Read the journal of ``client``."""
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
    """Batches of one role in one run folder.

    Args:
        folder: folder of the role's calls.
        client: client of the endpoint, whose journal receives the replies.
        max_calls: maximum number of calls in one batch.

    """

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
                f"{', '.join(batches)} of this folder were submitted and not yet collected; collect first (--batch "
                f"collect), or delete {self._path} to give them up."
            )

    async def submit(self, calls: Mapping[str, Messages]) -> str:
        """Submit ``calls``, chats by their digests, and return a report.

        Raises:
            InvalidInput: earlier batches were not collected.
            WorkFailed: the endpoint refused, or the budget does not suffice.

        """
        self.check_collected()
        if not calls:
            return "batch: every call has its reply; run gen-data without --batch to write the rows."
        self._client.check_batch_cost(calls.values())
        submitted: list[str] = []
        async with self._client:
            for lines in _portions(starmap(self._line, calls.items()), self._max_calls):
                submitted.append(await self._submit_file("".join(lines).encode()))
                self._note(submitted)  # on disk before the next one, in case of a kill
        return f"batch: {len(calls):,} calls were submitted as {', '.join(submitted)}; fetch them with --batch collect."

    async def _submit_file(self, lines: bytes) -> str:
        """Upload the calls, create their batch, and return its name."""
        given = ("calls.jsonl", lines)
        file = await self._client.call(lambda api: api.files.create(file=given, purpose="batch"))

        async def create(api: Any) -> str:
            for known in (await api.batches.list(limit=100)).data:  # created by an attempt whose reply was lost
                if known.input_file_id == file.id:
                    return str(known.id)
            batch = await api.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            return str(batch.id)

        return await self._client.call(create)

    async def collect(self) -> str:
        """Fetch the replies of batches that have ended, and return a report.

        Raises:
            InvalidInput: no batch is open.
            WorkFailed: the endpoint failed.

        """
        waiting = self._open()
        if not waiting:
            raise InvalidInput("no batch was submitted from this folder; begin with --batch submit.")
        report: list[str] = []
        async with self._client:
            for name in tuple(waiting):
                ended, state = await self._fetch(name)
                report.append(f"batch {name} is {state}")
                if ended:
                    waiting.remove(name)
                    self._note(waiting)
        return "\n".join(report)

    async def _fetch(self, name: str) -> tuple[bool, str]:
        """Save the replies of a batch if it has ended; return whether it has, and its state in words."""
        batch = await self._client.call(lambda api: api.batches.retrieve(name))
        if batch.status in PENDING_STATES:
            done = f", {batch.request_counts.completed:,} calls done" if batch.request_counts else ""
            return False, f"{batch.status}{done}; fetch again later."
        results: list[bool] = []
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            content = await self._download(file)
            results += [self._keep(line) for line in content.split("\n") if line]
        message = batch.errors and batch.errors.data and batch.errors.data[0].message
        why = f" It said: {message}" if message else ""
        return True, f"{batch.status}: {sum(results):,} replies kept, {results.count(False):,} calls without one.{why}"

    async def _download(self, file: str) -> str:
        return (await self._client.call(lambda api: api.files.content(file))).text

    def _line(self, asked: str, chat: Messages) -> str:
        request = {"method": "POST", "url": "/v1/chat/completions", "body": self._client.endpoint.body(chat)}
        return json.dumps({"custom_id": asked, **request}) + "\n"

    def _keep(self, line: str) -> bool:
        """Write the reply of one result line to the journal; return False if the line has none."""
        try:
            result = json.loads(line)
            asked, response = result["custom_id"], result["response"]
            if response["status_code"] != 200:
                return False
            body = response["body"]
            if self._client.journal.known(asked) is not None:
                return True
        except (ValueError, RecursionError, KeyError, TypeError, RejectedReply):
            return False
        return self._client.keep_batched(asked, body)

    def _open(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            names = json.loads(self._path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            names = None
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise InvalidInput(f"{self._path} is not a list of batches; correct it, or delete it to give them up.")
        return names

    def _note(self, names: Sequence[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, json.dumps(list(names)) + "\n")


def _portions(lines: Iterator[str], max_calls: int) -> Iterator[list[str]]:
    """Split lines into portions that fit into one batch."""
    portion: list[str] = []
    size = 0
    for line in lines:
        if portion and (len(portion) == max_calls or size + len(line.encode()) > MAX_BATCH_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(line)
        size += len(line.encode())
    if portion:
        yield portion
