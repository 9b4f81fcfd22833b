"""OpenAI's Batch mode: calls handed in together, and answered within a day at half the price.

Nothing else changes: the replies go to the journal, and gen-data finds them there. What is still missing then, such as
an answer to a reply that broke the rules, is asked in the ordinary way, or in another round.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from reflectrl.core import InvalidInput
from reflectrl.core.chat import Messages
from reflectrl.core.files import write_text
from reflectrl.endpoint.chat import ChatClient, Reply
from reflectrl.endpoint.journal import RejectedReply

LARGEST = 50_000
"""Calls of one batch, by the endpoint's rules; and so many bytes:"""
LARGEST_BYTES = 200_000_000
UNDER_WAY = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that has not ended."""
OPEN = "batches.json"
"""Names the batches that are handed in and not yet collected."""

T = TypeVar("T")


@dataclass(frozen=True)
class Call:
    """What is to be asked, with the digest it is known by."""

    asked: str
    chat: Messages


class CallsToCome(ChatClient):
    """Stands in for ``client`` where an expert plays: notes what is not answered yet, and says nothing.

    A reply that breaks the rules is not asked again here.
    """

    def __init__(self, client: ChatClient) -> None:
        """Read the journal of ``client``."""
        super().__init__(client.endpoint, client.journal)
        self._calls: dict[str, Call] = {}

    @property
    def calls(self) -> Sequence[Call]:
        """Without a reply so far, each once."""
        return list(self._calls.values())

    async def ask(self, chat: Messages, read: Callable[[str], T], draw: str = "") -> Reply[T]:  # noqa: ARG002
        """An empty reply."""
        asked = self.endpoint.digest(chat, draw)
        if self.journal.known(asked) is None:
            self._calls[asked] = Call(asked, chat)
        return Reply(cast(T, ""), 0)


class Batches:
    """The batches of one role in one run folder.

    Args:
        folder: of the role's calls.
        client: speaks to the endpoint, and keeps the replies.
        largest: calls of one batch.

    """

    def __init__(self, folder: Path, client: ChatClient, largest: int = LARGEST) -> None:
        self._path = folder / OPEN
        self._client = client
        self._largest = largest

    def check_collected(self) -> None:
        """Refuse to ask what is under way already.

        Raises:
            InvalidInput: batches were handed in, and not yet collected.

        """
        if batches := self._open():
            raise InvalidInput(
                f"{', '.join(batches)} of this folder were handed in and not yet collected; collect first (--batch "
                f"collect), or delete {self._path} to give them up."
            )

    async def submit(self, calls: Sequence[Call]) -> str:
        """Hand ``calls`` in; says what was done.

        Raises:
            InvalidInput: earlier batches were not collected.
            WorkFailed: the endpoint refused, or the money is spent.

        """
        self.check_collected()
        if not calls:
            return "batch: every call has its reply; run gen-data without --batch to write the rows."
        self._client.promise_batch([call.chat for call in calls])
        handed_in: list[str] = []
        async with self._client:
            for lines in _portions((json.dumps(self._line(call)) + "\n" for call in calls), self._largest):
                handed_in.append(await self._hand_in("".join(lines).encode()))
                self._note(handed_in)  # whoever is killed now knows of it
        return f"batch: {len(calls):,} calls were handed in as {', '.join(handed_in)}; fetch with --batch collect."

    async def _hand_in(self, lines: bytes) -> str:
        """Its name."""
        given = ("calls.jsonl", lines)
        file = await self._client.call(lambda api: api.files.create(file=given, purpose="batch"))

        async def create(api: Any) -> str:
            for known in (await api.batches.list(limit=100)).data:  # of an attempt whose answer was lost
                if known.input_file_id == file.id:
                    return str(known.id)
            batch = await api.batches.create(
                input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            return str(batch.id)

        return await self._client.call(create)

    async def collect(self) -> str:
        """Fetch the replies of batches that have ended; says what was done.

        Raises:
            InvalidInput: there is no batch.
            WorkFailed: the endpoint failed.

        """
        waiting = self._open()
        if not waiting:
            raise InvalidInput("no batch was handed in from this folder; begin with --batch submit.")
        told: list[str] = []
        async with self._client:
            for name in tuple(waiting):
                ended, state = await self._fetch(name)
                told.append(f"batch {name} is {state}")
                if ended:
                    waiting.remove(name)
                    self._note(waiting)
        return "\n".join(told)

    async def _fetch(self, name: str) -> tuple[bool, str]:
        """Keep the replies of a batch that has ended; whether it has, and how it stands."""
        batch = await self._client.call(lambda api: api.batches.retrieve(name))
        if batch.status in UNDER_WAY:
            done = f", {batch.request_counts.completed:,} calls done" if batch.request_counts else ""
            return False, f"{batch.status}{done}; fetch again later."
        results: list[bool] = []
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            content = await self._download(file)
            results += [self._keep(line) for line in content.split("\n") if line]
        said = batch.errors and batch.errors.data and batch.errors.data[0].message
        why = f" It said: {said}" if said else ""
        return True, f"{batch.status}: {sum(results):,} replies kept, {results.count(False):,} calls without one.{why}"

    async def _download(self, file: str) -> str:
        content = await self._client.call(lambda api: api.files.content(file))
        return content.text

    def _line(self, call: Call) -> dict[str, Any]:
        body = self._client.endpoint.body(call.chat)
        return {"custom_id": call.asked, "method": "POST", "url": "/v1/chat/completions", "body": body}

    def _keep(self, line: str) -> bool:
        """Put one line of a result into the journal; False where it holds no reply."""
        try:
            result = json.loads(line)
            asked, response = result["custom_id"], result["response"]
            if response["status_code"] != 200:
                return False
            body = response["body"]
            if self._client.journal.known(asked) is not None:
                return True
        except (ValueError, KeyError, TypeError, RejectedReply):
            return False
        return self._client.keep_batched(asked, body)

    def _open(self) -> list[str]:
        if not self._path.exists():
            return []
        try:
            names = json.loads(self._path.read_text(encoding="utf-8"))
        except ValueError:
            names = None
        if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
            raise InvalidInput(f"{self._path} is not a list of batches; mend it, or delete it to give them up.")
        return names

    def _note(self, names: Sequence[str]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self._path, json.dumps(list(names)) + "\n")


def _portions(lines: Iterator[str], largest: int) -> Iterator[list[str]]:
    """As many lines as one batch may hold, each time."""
    portion: list[str] = []
    size = 0
    for line in lines:
        if portion and (len(portion) == largest or size + len(line.encode()) > LARGEST_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(line)
        size += len(line.encode())
    if portion:
        yield portion
